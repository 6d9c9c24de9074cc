"""The kubelet: from a pod's spec to a process, and from its end to a status."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import CLAIM, CONFIG_MAP, POD
from kfp_pytorch.local.apiserver.registry import SECRET

Object = dict[str, Any]
Run = Callable[..., None]

META = {"namespace": "default"}


def test_a_pod_succeeds_with_the_events_of_each_step(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("print('hello')"))
        pod = await local.phase("p", "Succeeded", "Failed")
        assert pod["status"]["phase"] == "Succeeded"
        assert pod["spec"]["nodeName"] == "local"
        assert pod["status"]["podIP"] == "127.0.0.1"
        assert local.ended(pod)["exitCode"] == 0
        assert local.ended(pod)["reason"] == "Completed"
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
        local.create_pod("p", local.python(code))
        pod = await local.phase("p", "Failed")
        assert local.ended(pod)["exitCode"] == exit_code
        assert local.ended(pod)["reason"] == "Error"

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
        local.create_pod("p", local.python(code), env=env)
        found = json.loads(local.log(await local.phase("p", "Succeeded")))
        assert found.pop("A") == "it's $HOME \\d {{x}} ✨"
        assert found.pop("B") == "it's $HOME \\d {{x}} ✨!"
        assert found.pop("NAME") == "p"
        assert found.pop("PATH").split(":")[0] == os.path.dirname(sys.executable)  # noqa: PTH120
        assert found.pop("HOME").startswith(str(local.root))
        assert found.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"
        assert found.pop("OMP_WAIT_POLICY") == "PASSIVE"
        assert found.keys() == {"TMPDIR", "LANG", "HOSTNAME", "KFP_PYTORCH_TERMINATION_LOG"}

    on_controllers(story)


def test_arguments_arrive_byte_for_byte(on_controllers: Run) -> None:
    words = ["it's", 'say "hi"', "a\\b", "$HOME", "$(date)", "{{x}}", "✨", "", "--foo", "a\nb"]

    async def story(local: Any) -> None:
        code = "import json, sys; print(json.dumps(sys.argv[1:]))"
        local.create_pod("p", local.python(code), args=words)
        assert json.loads(local.log(await local.phase("p", "Succeeded"))) == words

    on_controllers(story)


def test_variables_come_from_secrets_and_config_maps_once_they_exist(
    on_controllers: Run,
) -> None:
    async def story(local: Any) -> None:
        env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
        sources = [{"configMapRef": {"name": "c"}, "prefix": "P_"}]
        code = "import os; print(os.environ['K'], os.environ['P_x'])"
        local.create_pod("p", local.python(code), env=env, envFrom=sources)
        pod = await local.until(POD, "p", local.waiting)
        assert local.waiting(pod)["reason"] == "CreateContainerConfigError"
        assert local.waiting(pod)["message"] == 'configmap "c" not found'
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
            local.python(code),
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
            local.python(code),
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


def test_a_pod_waits_for_its_claim_with_the_schedulers_message(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "later"}}]
        local.create_pod("p", local.python("pass"), Volumes=volumes)
        event = await local.event("p", "FailedScheduling")
        assert 'persistentvolumeclaim "later" not found' in event["message"]
        pod = local.api.get(POD, "default", "p")
        (scheduled,) = pod["status"]["conditions"]
        assert (scheduled["status"], scheduled["reason"]) == ("False", "Unschedulable")
        assert pod["status"]["phase"] == "Pending"
        local.api.create(CLAIM, {"metadata": {"name": "later", **META}, "spec": {}})
        await local.phase("p", "Succeeded")

    on_controllers(story)


def test_a_missing_gpu_makes_a_pod_unschedulable(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("pass"), resources={"limits": {"nvidia.com/gpu": "1"}})
        event = await local.event("p", "FailedScheduling")
        reason = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        assert event["message"].startswith(reason)

    on_controllers(story)


def test_pods_share_the_gpus_of_the_node(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = (
            "import os, time\n"
            "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); time.sleep(600)"
        )
        for name, gpus in (("a", "1"), ("b", "2"), ("none", "0")):
            limits = {"nvidia.com/gpu": gpus}
            local.create_pod(name, local.python(code), resources={"limits": limits})
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


def test_a_container_over_its_memory_limit_is_oom_killed(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = "import time; x = bytearray(200 * 2**20); time.sleep(600)"
        local.create_pod("p", local.python(code), resources={"limits": {"memory": "64Mi"}})
        pod = await local.phase("p", "Failed")
        assert local.ended(pod)["reason"] == "OOMKilled"
        assert local.ended(pod)["exitCode"] == 137

    on_controllers(story)


def test_memory_is_counted_over_all_processes_of_a_container(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        child = "import time; x = bytearray(60 * 2**20); time.sleep(600)"
        code = (
            "import subprocess, sys\n"
            f"for p in [subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
            " for _ in range(2)]: p.wait()"
        )
        local.create_pod("p", local.python(code), resources={"limits": {"memory": "100Mi"}})
        assert local.ended(await local.phase("p", "Failed"))["reason"] == "OOMKilled"

    on_controllers(story)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-command", 'exec: "no-such-command": executable file not found in $PATH'),
        ("/no/such", 'exec: "/no/such": stat /no/such: no such file or directory'),
        ("/etc/passwd", 'exec: "/etc/passwd": permission denied'),
    ],
)
def test_a_command_that_cannot_start_is_a_start_error(
    on_controllers: Run, command: str, message: str
) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", [command])
        pod = await local.phase("p", "Failed")
        assert local.ended(pod)["reason"] == "StartError"
        assert local.ended(pod)["exitCode"] == 128
        assert message in local.ended(pod)["message"]
        assert message in (await local.event("p", "Failed"))["message"]

    on_controllers(story)


def test_a_command_that_cannot_start_crash_loops_where_it_is_restarted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", ["no-such-command"], RestartPolicy="OnFailure")
        pod = await local.restarted("p", 2)
        assert local.state(pod)["lastState"]["terminated"]["reason"] == "StartError"
        assert local.waiting(pod)["reason"] in ("CrashLoopBackOff", "RunContainerError")

    on_controllers(story)


def test_a_container_without_a_command_is_a_create_error(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", [])
        pod = await local.until(POD, "p", local.waiting)
        assert local.waiting(pod)["reason"] == "CreateContainerError"
        assert "no command specified" in local.waiting(pod)["message"]

    on_controllers(story)


def test_an_invalid_image_name_is_reported(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("pass"), image="Not An Image")
        pod = await local.until(POD, "p", local.waiting)
        assert local.waiting(pod)["reason"] == "InvalidImageName"
        assert pod["status"]["phase"] == "Pending"

    on_controllers(story)
