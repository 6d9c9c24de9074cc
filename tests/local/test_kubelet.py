"""The kubelet's stand-in: what a pod says becomes a process, and what that does a status."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import CLAIM, POD
from kfp_pytorch.local.apiserver.registry import CONFIG_MAP, SECRET

Object = dict[str, Any]
Run = Callable[..., None]

META = {"namespace": "default"}


def python(code: str) -> list[str]:
    return ["python", "-I", "-S", "-c", code]


def state(pod: Object, container: str = "main") -> Object:
    statuses = pod["status"]["containerStatuses"]
    return next(each for each in statuses if each["name"] == container)


def ended(pod: Object, container: str = "main") -> Object:
    return state(pod, container)["state"]["terminated"]


def waiting(pod: Object) -> Object:
    return state(pod)["state"].get("waiting") or {}


def has_status(pod: Object) -> bool:
    return "containerStatuses" in pod["status"]


def test_a_pod_that_ends_well_succeeds_and_its_events_tell_the_way(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python("print('hello')"))
        pod = await local.phase("p", "Succeeded", "Failed")
        assert pod["status"]["phase"] == "Succeeded"
        assert pod["spec"]["nodeName"] == "local"
        assert pod["status"]["podIP"] == "127.0.0.1"
        assert ended(pod)["exitCode"] == 0
        assert ended(pod)["reason"] == "Completed"
        assert local.log(pod) == "hello\n"
        for reason in ("Scheduled", "Pulled", "Created", "Started"):
            await local.event("p", reason)

    on_controllers(story)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_of_a_failed_pod_is_its_process(
    on_controllers: Run, code: str, exit_code: int
) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python(code))
        pod = await local.phase("p", "Failed")
        assert ended(pod)["exitCode"] == exit_code
        assert ended(pod)["reason"] == "Error"

    on_controllers(story)


def test_the_environment_is_a_short_list_and_what_the_pod_declares(
    on_controllers: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "x")

    async def story(local: Any) -> None:
        code = "import json, os; print(json.dumps(dict(os.environ)))"
        env = [
            {"name": "A", "value": "it's $HOME \\d {{x}} ✨"},
            {"name": "B", "value": "$(A)!"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]
        local.create_pod("p", python(code), env=env)
        found = json.loads(local.log(await local.phase("p", "Succeeded")))
        assert found.pop("A") == "it's $HOME \\d {{x}} ✨"
        assert found.pop("B") == "it's $HOME \\d {{x}} ✨!"
        assert found.pop("NAME") == "p"
        assert found.pop("PATH").split(":")[0] == os.path.dirname(sys.executable)  # noqa: PTH120
        assert found.pop("HOME").startswith(str(local.root))
        assert found.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"
        assert found.keys() == {"TMPDIR", "LANG", "HOSTNAME", "KFP_PYTORCH_TERMINATION_LOG"}

    on_controllers(story)


def test_arguments_arrive_byte_for_byte(on_controllers: Run) -> None:
    words = ["it's", 'say "hi"', "a\\b", "$HOME", "$(date)", "{{x}}", "✨", "", "--foo", "a\nb"]

    async def story(local: Any) -> None:
        code = "import json, sys; print(json.dumps(sys.argv[1:]))"
        local.create_pod("p", python(code), args=words)
        assert json.loads(local.log(await local.phase("p", "Succeeded"))) == words

    on_controllers(story)


def test_variables_come_from_secrets_and_config_maps_once_they_are_there(
    on_controllers: Run,
) -> None:
    async def story(local: Any) -> None:
        env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
        sources = [{"configMapRef": {"name": "c"}, "prefix": "P_"}]
        code = "import os; print(os.environ['K'], os.environ['P_x'])"
        local.create_pod("p", python(code), env=env, envFrom=sources)
        pod = await local.until(
            POD, "p", lambda each: has_status(each) and waiting(each).get("message")
        )
        assert waiting(pod)["reason"] == "CreateContainerConfigError"
        assert waiting(pod)["message"] == 'configmap "c" not found'
        local.api.create(CONFIG_MAP, {"metadata": {"name": "c", **META}, "data": {"x": "1"}})
        data = {"k": base64.b64encode(b"secret").decode()}
        local.api.create(SECRET, {"metadata": {"name": "s", **META}, "data": data})
        assert local.log(await local.phase("p", "Succeeded")) == "secret 1\n"

    on_controllers(story)


def test_a_mount_path_in_a_value_becomes_the_folder_of_the_claim(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        spec = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteMany"]}
        local.api.create(CLAIM, {"metadata": {"name": "c", **META}, "spec": spec})
        code = (
            "import os, sys, pathlib\n"
            "pathlib.Path(sys.argv[1]).write_text('from an argument')\n"
            "pathlib.Path(os.environ['OUT'], 'b').write_text('from a variable')"
        )
        local.create_pod(
            "p",
            python(code),
            args=["/mnt/out/a"],
            env=[{"name": "OUT", "value": "/mnt/out"}],
            volumeMounts=[{"name": "v", "mountPath": "/mnt/out", "subPath": "sub"}],
            Volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        )
        await local.phase("p", "Succeeded")
        folder = local.root / "claims" / "default" / "c" / "sub"
        assert (folder / "a").read_text() == "from an argument"
        assert (folder / "b").read_text() == "from a variable"

    on_controllers(story)


def test_secrets_and_config_maps_are_mounted_as_files(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        data = {"k": base64.b64encode(b"\x00\xff").decode()}
        local.api.create(SECRET, {"metadata": {"name": "s", **META}, "data": data})
        local.api.create(CONFIG_MAP, {"metadata": {"name": "c", **META}, "data": {"x": "1"}})
        code = "import sys; print(*[open(p, 'rb').read() for p in sys.argv[1:]])"
        local.create_pod(
            "p",
            python(code),
            args=["/s/k", "/c/renamed"],
            volumeMounts=[{"name": "s", "mountPath": "/s"}, {"name": "c", "mountPath": "/c"}],
            Volumes=[
                {"name": "s", "secret": {"secretName": "s"}},
                {
                    "name": "c",
                    "configMap": {"name": "c", "items": [{"key": "x", "path": "renamed"}]},
                },
            ],
        )
        assert local.log(await local.phase("p", "Succeeded")) == "b'\\x00\\xff' b'1'\n"

    on_controllers(story)


def test_a_pod_waits_for_its_claim_with_the_schedulers_words(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "later"}}]
        local.create_pod("p", python("pass"), Volumes=volumes)
        event = await local.event("p", "FailedScheduling")
        assert 'persistentvolumeclaim "later" not found' in event["message"]
        pod = local.api.get(POD, "default", "p")
        (scheduled,) = pod["status"]["conditions"]
        assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
        assert pod["status"]["phase"] == "Pending"
        local.api.create(CLAIM, {"metadata": {"name": "later", **META}, "spec": {}})
        await local.phase("p", "Succeeded")

    on_controllers(story)


def test_a_gpu_that_is_not_there_makes_a_pod_unschedulable(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python("pass"), resources={"limits": {"nvidia.com/gpu": "1"}})
        event = await local.event("p", "FailedScheduling")
        words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        assert event["message"].startswith(words)

    on_controllers(story)


def test_pods_share_the_gpus_that_are_there(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = (
            "import os, time\n"
            "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
        )
        for name, gpus in (("a", "1"), ("b", "2"), ("none", "0")):
            limits = {"nvidia.com/gpu": gpus}
            local.create_pod(name, python(code), resources={"limits": limits})
        pods = [await local.phase(name, "Running") for name in ("a", "b", "none")]
        seen = []
        for pod in pods:
            while not local.log(pod):
                await asyncio.sleep(0.01)
            seen.append(local.log(pod).strip())
        numbers = [each for line in seen for each in line.split(",") if each]
        assert sorted(numbers) == ["0", "1", "2"]
        assert seen[2] == ""

    on_controllers(story, gpus=[0, 1, 2])


def test_memory_over_the_limit_is_killed_and_said_so(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = "import time; x = bytearray(200 * 2**20); time.sleep(600)"
        local.create_pod("p", python(code), resources={"limits": {"memory": "64Mi"}})
        pod = await local.phase("p", "Failed")
        assert ended(pod)["reason"] == "OOMKilled"
        assert ended(pod)["exitCode"] == 137

    on_controllers(story)


def test_memory_is_counted_over_all_processes_of_a_container(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        child = "import time; x = bytearray(60 * 2**20); time.sleep(600)"
        code = (
            "import subprocess, sys\n"
            f"for p in [subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
            " for _ in range(2)]: p.wait()"
        )
        local.create_pod("p", python(code), resources={"limits": {"memory": "100Mi"}})
        assert ended(await local.phase("p", "Failed"))["reason"] == "OOMKilled"

    on_controllers(story)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("no-such-command", 'exec: "no-such-command": executable file not found in $PATH'),
        ("/no/such", 'exec: "/no/such": stat /no/such: no such file or directory'),
        ("/etc/passwd", 'exec: "/etc/passwd": permission denied'),
    ],
)
def test_a_command_that_cannot_start_is_a_start_error(
    on_controllers: Run, command: str, words: str
) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", [command])
        pod = await local.phase("p", "Failed")
        assert ended(pod)["reason"] == "StartError"
        assert ended(pod)["exitCode"] == 128
        assert words in ended(pod)["message"]
        assert words in (await local.event("p", "Failed"))["message"]

    on_controllers(story)


def test_a_command_that_cannot_start_crash_loops_where_it_is_restarted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", ["no-such-command"], RestartPolicy="OnFailure")
        pod = await local.until(
            POD, "p", lambda each: has_status(each) and state(each)["restartCount"] == 2
        )
        assert state(pod)["lastState"]["terminated"]["reason"] == "StartError"
        assert waiting(pod)["reason"] in ("CrashLoopBackOff", "RunContainerError")

    on_controllers(story)


def test_no_command_at_all_is_said_to_be_the_fault(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", [])
        pod = await local.until(
            POD, "p", lambda each: has_status(each) and waiting(each).get("message")
        )
        assert waiting(pod)["reason"] == "CreateContainerError"
        assert "no command specified" in waiting(pod)["message"]

    on_controllers(story)


def test_the_name_of_an_image_that_cannot_be_one_is_refused(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python("pass"), image="Not An Image")
        pod = await local.until(
            POD, "p", lambda each: has_status(each) and waiting(each).get("message")
        )
        assert waiting(pod)["reason"] == "InvalidImageName"
        assert pod["status"]["phase"] == "Pending"

    on_controllers(story)


def test_a_crashing_container_is_restarted_in_place_later_and_later(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python("print('x'); raise SystemExit(1)"), RestartPolicy="OnFailure")
        pod = await local.until(
            POD, "p", lambda each: has_status(each) and state(each)["restartCount"] == 3
        )
        assert pod["status"]["phase"] == "Running"
        assert state(pod)["lastState"]["terminated"]["exitCode"] == 1
        looping = await local.until(POD, "p", lambda each: waiting(each))
        assert waiting(looping)["reason"] == "CrashLoopBackOff"
        assert waiting(looping)["message"].startswith("back-off 0.")
        event = await local.event("p", "BackOff")
        assert event["type"] == "Warning"
        logs = list(local.root.glob("logs/default_p_*/main/*.log"))
        assert len(logs) <= 3

    on_controllers(story)


def test_a_container_that_ends_well_is_not_restarted_on_failure(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python("pass"), RestartPolicy="OnFailure")
        pod = await local.phase("p", "Succeeded")
        assert state(pod)["restartCount"] == 0

    on_controllers(story)


def test_the_last_words_are_the_end_of_the_termination_message(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        path = "os.environ['KFP_PYTORCH_TERMINATION_LOG']"
        code = f"import os; open({path}, 'w').write('a' * 9000 + 'END')"
        local.create_pod("p", python(code))
        message = ended(await local.phase("p", "Succeeded"))["message"]
        assert len(message) == 4096
        assert message.endswith("END")

    on_controllers(story)


def test_the_last_words_of_many_containers_share_what_a_pod_may_say(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = "import os; open(os.environ['KFP_PYTORCH_TERMINATION_LOG'], 'w').write('x' * 4096)"
        each = {"image": "python", "command": python(code)}
        containers = [{"name": f"c{n}", **each} for n in range(4)]
        local.create_pod("p", [], Containers=containers)
        pod = await local.phase("p", "Succeeded")
        assert {len(ended(pod, f"c{n}")["message"]) for n in range(4)} == {3072}

    on_controllers(story)


def test_without_last_words_the_end_of_the_log_stands_in(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        lines = "'\\n'.join(map(str, range(1000)))"
        code = f"print({lines}, flush=True); raise ValueError('boom ✨')"
        local.create_pod("p", python(code), terminationMessagePolicy="FallbackToLogsOnError")
        message = ended(await local.phase("p", "Failed"))["message"]
        assert message.rstrip().endswith("ValueError: boom ✨")
        assert "999" in message
        assert len(message.splitlines()) == 80

    on_controllers(story)


def test_init_containers_run_first_and_in_order(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        mounts = [{"name": "v", "mountPath": "/v"}]
        code = (
            "import sys; f = open(sys.argv[1], 'a+'); f.seek(0)\n"
            "print(f.read()); f.write(sys.argv[2])"
        )

        def container(word: str) -> Object:
            named = {"name": word, "image": "python", "volumeMounts": mounts}
            return {**named, "command": python(code), "args": ["/v/f", word]}

        local.create_pod(
            "p",
            [],
            InitContainers=[container("one"), container("two")],
            Containers=[container("main")],
            Volumes=[{"name": "v", "emptyDir": {}}],
        )
        pod = await local.phase("p", "Succeeded")
        assert local.log(pod) == "onetwo\n"
        assert [each["ready"] for each in pod["status"]["initContainerStatuses"]] == [True, True]

    on_controllers(story)


def test_a_failed_init_container_fails_a_pod_that_is_never_restarted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        first = {"name": "first", "image": "python", "command": python("raise SystemExit(2)")}
        local.create_pod("p", python("pass"), InitContainers=[first])
        pod = await local.phase("p", "Failed")
        (status,) = pod["status"]["initContainerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == 2
        assert waiting(pod)["reason"] == "PodInitializing"

    on_controllers(story)


def test_a_deleted_pod_gets_sigterm_and_is_gone_when_it_has_ended(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = (
            "import signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(143)))\n"
            "print('up', flush=True); time.sleep(600)"
        )
        pod = local.create_pod("p", python(code))
        await local.phase("p", "Running")
        while "up" not in local.log(pod):
            await asyncio.sleep(0.01)
        local.api.delete(POD, "default", "p")
        last = await local.gone(POD, "p")
        assert ended(last)["exitCode"] == 143
        assert local.log(pod) == "up\nbye\n"
        assert (await local.event("p", "Killing"))["message"] == "Stopping container main"

    on_controllers(story)


def test_a_deleted_pod_that_ignores_sigterm_is_killed_after_its_grace(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = (
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('up', flush=True); time.sleep(600)"
        )
        pod = local.create_pod("p", python(code), TerminationGracePeriodSeconds=600)
        await local.phase("p", "Running")
        while "up" not in local.log(pod):
            await asyncio.sleep(0.01)
        local.api.delete(POD, "default", "p", grace=1)
        assert ended(await local.gone(POD, "p"))["exitCode"] == 137

    on_controllers(story)


def test_a_pod_that_is_deleted_at_once_leaves_no_process(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python("import time; time.sleep(600)"))
        await local.phase("p", "Running")
        local.api.delete(POD, "default", "p", grace=0)
        async with asyncio.timeout(30):
            while list(local.root.glob("pods/*")):
                await asyncio.sleep(0.01)

    on_controllers(story)


def test_a_crash_looping_pod_can_be_deleted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", python("raise SystemExit(7)"), RestartPolicy="Always")
        await local.until(POD, "p", lambda each: has_status(each) and waiting(each).get("message"))
        local.api.delete(POD, "default", "p")
        assert ended(await local.gone(POD, "p"))["exitCode"] == 7

    on_controllers(story)


def test_a_pod_of_another_node_is_left_alone(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("elsewhere", python("pass"), NodeName="elsewhere")
        local.create_pod("step", python("pass"), SchedulerName="somebody-else")
        local.create_pod("p", python("pass"))
        await local.phase("p", "Succeeded")
        for name in ("elsewhere", "step"):
            assert local.api.get(POD, "default", name)["status"]["phase"] == "Pending"

    on_controllers(story)


def test_a_pod_is_ready_when_its_probe_is_answered_on_its_free_port(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = (
            "import http.server, sys\n"
            "class H(http.server.BaseHTTPRequestHandler):\n"
            "    def do_GET(self):\n"
            "        self.send_response(200 if self.path == '/ready' else 404)\n"
            "        self.end_headers()\n"
            "port = int(sys.argv[1].split('=')[1])\n"
            "http.server.HTTPServer(('127.0.0.1', port), H).serve_forever()"
        )
        probe = {"httpGet": {"path": "/ready", "port": "web"}, "periodSeconds": 1}
        created = local.create_pod(
            "p",
            python(code),
            args=["--http_port=8080"],
            ports=[{"name": "web", "containerPort": 8080}],
            readinessProbe=probe,
        )

        def ready(pod: Object) -> bool:
            conditions = pod["status"].get("conditions") or []
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        running = await local.phase("p", "Running")
        assert not ready(running)
        await local.until(POD, "p", ready)
        port = local.ports.of(created, 8080)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
        assert b"200" in await reader.readline()
        writer.close()

    on_controllers(story)


def test_a_container_that_fails_its_liveness_probe_is_restarted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        probe = {"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 1}
        local.create_pod(
            "p", python("import time; time.sleep(600)"), livenessProbe=probe, RestartPolicy="Always"
        )
        pod = await local.until(
            POD, "p", lambda each: has_status(each) and state(each)["restartCount"] == 1
        )
        assert state(pod)["lastState"]["terminated"]["exitCode"] == 143
        await local.event("p", "Unhealthy")

    on_controllers(story)
