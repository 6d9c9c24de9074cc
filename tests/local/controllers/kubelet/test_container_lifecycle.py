"""The kubelet over time: restarts, termination messages, order, readiness and deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import POD

Object = dict[str, Any]
Run = Callable[..., None]

META = {"namespace": "default"}


def test_a_crashing_container_is_restarted_in_place_later_and_later(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod(
            "p", local.python("print('x'); raise SystemExit(1)"), RestartPolicy="OnFailure"
        )
        pod = await local.restarted("p", 3)
        assert pod["status"]["phase"] == "Running"
        assert local.state(pod)["lastState"]["terminated"]["exitCode"] == 1
        looping = await local.until(POD, "p", local.waiting)
        assert local.waiting(looping)["reason"] == "CrashLoopBackOff"
        assert local.waiting(looping)["message"].startswith("back-off 0.")
        event = await local.event("p", "BackOff")
        assert event["type"] == "Warning"
        logs = list(local.root.glob("logs/default_p_*/main/*.log"))
        assert len(logs) <= 3

    on_controllers(story)


def test_a_container_that_ends_well_is_not_restarted_on_failure(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("pass"), RestartPolicy="OnFailure")
        pod = await local.phase("p", "Succeeded")
        assert local.state(pod)["restartCount"] == 0

    on_controllers(story)


def test_a_termination_message_is_the_end_of_its_file(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        path = "os.environ['KFP_PYTORCH_TERMINATION_LOG']"
        code = f"import os; open({path}, 'w').write('a' * 9000 + 'END')"
        local.create_pod("p", local.python(code))
        message = local.ended(await local.phase("p", "Succeeded"))["message"]
        assert len(message) == 4096
        assert message.endswith("END")

    on_controllers(story)


def test_the_termination_messages_of_a_pod_share_a_limit(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = "import os; open(os.environ['KFP_PYTORCH_TERMINATION_LOG'], 'w').write('x' * 4096)"
        each = {"image": "python", "command": local.python(code)}
        containers = [{"name": f"c{n}", **each} for n in range(4)]
        local.create_pod("p", [], Containers=containers)
        pod = await local.phase("p", "Succeeded")
        assert {len(local.ended(pod, f"c{n}")["message"]) for n in range(4)} == {3072}

    on_controllers(story)


def test_the_end_of_the_log_replaces_an_empty_termination_message(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        lines = "'\\n'.join(map(str, range(1000)))"
        code = f"print({lines}, flush=True); raise ValueError('boom ✨')"
        local.create_pod("p", local.python(code), terminationMessagePolicy="FallbackToLogsOnError")
        message = local.ended(await local.phase("p", "Failed"))["message"]
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
            return {**named, "command": local.python(code), "args": ["/v/f", word]}

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


def sidecar(local: Any, code: str) -> Object:
    """An init container that runs as long as its pod."""
    mounts = [{"name": "v", "mountPath": "/v"}]
    own = {"name": "beside", "image": "python", "volumeMounts": mounts, "restartPolicy": "Always"}
    return {**own, "command": local.python(code), "args": ["/v"]}


def with_sidecar(local: Any, main: str, beside: str) -> None:
    main_mounts = [{"name": "v", "mountPath": "/v"}]
    local.create_pod(
        "p",
        local.python(main),
        args=["/v"],
        volumeMounts=main_mounts,
        InitContainers=[sidecar(local, beside)],
        Volumes=[{"name": "v", "emptyDir": {}}],
    )


def test_a_sidecar_runs_beside_its_pod_and_is_stopped_after_it(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        beside = (
            "import signal, sys, time\n"
            "def stop(*_): print('stopped'); raise SystemExit(3)\n"
            "signal.signal(signal.SIGTERM, stop)\n"
            "open(sys.argv[1] + '/up', 'w').close()\n"
            "while True: time.sleep(0.01)"
        )
        main = (
            "import os, sys, time\n"
            "while not os.path.exists(sys.argv[1] + '/up'): time.sleep(0.01)\n"
            "print('met')"
        )
        with_sidecar(local, main, beside)
        pod = await local.phase("p", "Succeeded", "Failed")
        assert pod["status"]["phase"] == "Succeeded"
        assert local.log(pod) == "met\n"
        assert local.log(pod, "beside") == "stopped\n"
        (status,) = pod["status"]["initContainerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == 3

    on_controllers(story)


def test_a_sidecar_is_restarted_and_does_not_decide_the_phase(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        beside = (
            "import os, sys, time\n"
            "if os.path.exists(sys.argv[1] + '/again'): open(sys.argv[1] + '/up', 'w').close()\n"
            "else: open(sys.argv[1] + '/again', 'w').close(); raise SystemExit(1)\n"
            "time.sleep(60)"
        )
        main = (
            "import os, sys, time\n"
            "while not os.path.exists(sys.argv[1] + '/up'): time.sleep(0.01)\n"
            "raise SystemExit(4)"
        )
        with_sidecar(local, main, beside)
        pod = await local.phase("p", "Succeeded", "Failed")
        assert pod["status"]["phase"] == "Failed"
        assert local.ended(pod)["exitCode"] == 4
        (status,) = pod["status"]["initContainerStatuses"]
        assert status["restartCount"] == 1

    on_controllers(story)


def test_a_pod_with_a_sidecar_can_be_deleted_at_any_time(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        with_sidecar(local, "import time; time.sleep(60)", "import time; time.sleep(60)")
        await local.phase("p", "Running")
        local.api.delete(POD, META["namespace"], "p", grace=60)
        pod = await local.deleted(POD, "p")
        assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 143

        never = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 100}
        slow = {**sidecar(local, "import time; time.sleep(60)"), "startupProbe": never}
        local.create_pod(
            "q",
            local.python("pass"),
            InitContainers=[slow],
            Volumes=[{"name": "v", "emptyDir": {}}],
        )
        running = await local.until(
            POD, "q", lambda pod: "running" in str(pod["status"].get("initContainerStatuses"))
        )
        assert running["status"]["phase"] == "Pending"
        local.api.delete(POD, META["namespace"], "q", grace=60)
        await local.deleted(POD, "q")

    on_controllers(story)


def test_a_failed_init_container_fails_a_pod_that_is_never_restarted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        first = {"name": "first", "image": "python", "command": local.python("raise SystemExit(2)")}
        local.create_pod("p", local.python("pass"), InitContainers=[first])
        pod = await local.phase("p", "Failed")
        (status,) = pod["status"]["initContainerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == 2
        assert local.state(pod)["state"]["waiting"]["reason"] == "PodInitializing"

    on_controllers(story)


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
def test_a_pod_past_its_deadline_is_terminated_and_fails(on_controllers: Run, policy: str) -> None:
    async def story(local: Any) -> None:
        # It ends well when asked to: the pod has failed for all that.
        code = (
            "import signal, sys\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); signal.pause()"
        )
        local.create_pod("p", local.python(code), RestartPolicy=policy, ActiveDeadlineSeconds=1)
        status = (await local.phase("p", "Failed", "Succeeded"))["status"]
        assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
        message = "Pod was active on the node longer than the specified deadline"
        assert status["message"] == message
        assert (await local.event("p", "DeadlineExceeded"))["message"] == message
        assert local.state({"status": status})["restartCount"] == 0

    on_controllers(story)


def test_a_pod_past_its_deadline_without_its_volume_fails(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        missing = [{"name": "v", "configMap": {"name": "gone"}}]
        local.create_pod("p", local.python("pass"), Volumes=missing, ActiveDeadlineSeconds=1)
        assert (await local.phase("p", "Failed"))["status"]["reason"] == "DeadlineExceeded"

    on_controllers(story)


def test_a_deleted_pod_gets_sigterm_and_is_removed_when_it_has_ended(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = (
            # Not print, which the signal may find at work.
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), sys.exit(143)))\n"
            "os.write(1, b'up\\n'); time.sleep(600)"
        )
        pod = local.create_pod("p", local.python(code))
        await local.phase("p", "Running")
        while "up" not in local.log(pod):
            await asyncio.sleep(0.01)
        local.api.delete(POD, "default", "p")
        last = await local.deleted(POD, "p")
        assert local.ended(last)["exitCode"] == 143
        assert local.log(pod) == "up\nbye\n"
        killing = await local.event("p", "Killing")
        assert (killing["message"], killing["count"]) == ("Stopping container main", 1)

    on_controllers(story)


def test_a_deleted_pod_that_ignores_sigterm_is_killed_after_its_grace(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = (
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('up', flush=True); time.sleep(600)"
        )
        pod = local.create_pod("p", local.python(code), TerminationGracePeriodSeconds=600)
        await local.phase("p", "Running")
        while "up" not in local.log(pod):
            await asyncio.sleep(0.01)
        local.api.delete(POD, "default", "p", grace=1)
        assert local.ended(await local.deleted(POD, "p"))["exitCode"] == 137

    on_controllers(story)


def test_a_pod_that_is_deleted_at_once_leaves_no_process(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("import time; time.sleep(600)"))
        await local.phase("p", "Running")
        local.api.delete(POD, "default", "p", grace=0)
        async with asyncio.timeout(120):
            while list(local.root.glob("pods/*")):
                await asyncio.sleep(0.01)

    on_controllers(story)


def test_a_crash_looping_pod_can_be_deleted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("raise SystemExit(7)"), RestartPolicy="Always")
        await local.until(POD, "p", local.waiting)
        local.api.delete(POD, "default", "p")
        assert local.ended(await local.deleted(POD, "p"))["exitCode"] == 7

    on_controllers(story)


def test_a_pod_of_another_node_is_left_alone(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("elsewhere", local.python("pass"), NodeName="elsewhere")
        local.create_pod("step", local.python("pass"), SchedulerName="somebody-else")
        local.create_pod("p", local.python("pass"))
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
            local.python(code),
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
            "p",
            local.python("import time; time.sleep(600)"),
            livenessProbe=probe,
            RestartPolicy="Always",
        )
        pod = await local.restarted("p", 1)
        assert local.state(pod)["lastState"]["terminated"]["exitCode"] == 143
        await local.event("p", "Unhealthy")

    on_controllers(story)
