"""The order in which the kubelet reports a pod's states, as measured on Kubernetes 1.34."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import POD
from kfp_pytorch.local.controllers.kubelet.timing import Timing

Object = dict[str, Any]
Run = Callable[..., None]
SLEEP = "import time; time.sleep(600)"


def reported(status: Object, group: str = "containerStatuses") -> str:
    """The state of the first container in one word, with its reason or exit code."""
    (found,) = (status.get(group) or [{"state": {"none": {}}}])[:1]
    ((state, details),) = found["state"].items()
    detail = details.get("exitCode", details.get("reason", ""))
    return f"{state} {detail}".rstrip()


def sequence(local: Any, name: str) -> list[tuple[str, str]]:
    """The phases and container states of a pod, each once for as long as it stayed the same."""
    pairs = [(p["status"]["phase"], reported(p["status"])) for p in local.history(POD, name)]
    return [each for before, each in pairwise([("", ""), *pairs]) if before != each]


def test_a_termination_is_reported_before_the_phase(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("raise SystemExit(3)"))
        await local.phase("p", "Failed")
        assert sequence(local, "p") == [
            ("Pending", "none"),
            ("Pending", "waiting ContainerCreating"),
            ("Running", "running"),
            ("Running", "terminated 3"),
            ("Failed", "terminated 3"),
        ]
        conditions = {c["type"]: c for c in local.history(POD, "p")[-2]["status"]["conditions"]}
        assert conditions["Ready"]["reason"] == "PodFailed"
        assert conditions["PodReadyToStartContainers"]["status"] == "True"

    on_controllers(story)


def test_the_phase_follows_the_termination_after_a_second(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("pass"))
        await local.until(POD, "p", lambda pod: reported(pod["status"]).startswith("terminated"))
        began = time.monotonic()
        await local.phase("p", "Succeeded")
        assert 0.9 < time.monotonic() - began < 10

    on_controllers(story, timing=Timing())


def test_a_crash_loop_is_reported_at_the_end_of_the_back_off(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("raise SystemExit(1)"), RestartPolicy="Always")
        await local.restarted("p", 2)
        assert sequence(local, "p")[2:8] == [
            ("Running", "running"),
            ("Running", "terminated 1"),
            ("Running", "running"),
            ("Running", "terminated 1"),
            ("Running", "waiting CrashLoopBackOff"),
            ("Running", "running"),
        ]

    on_controllers(story)


def test_the_shipped_delays_are_those_that_were_measured() -> None:
    shipped = Timing()
    assert (shipped.sync, shipped.crash_loop) == (1.0, 10.0)
    assert [shipped.before(restart) for restart in range(1, 9)] == [1, 1, 2, 4, 8, 16, 32, 60]


def test_a_command_that_cannot_be_executed_waits_in_a_running_pod(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", ["nonsuch"], RestartPolicy="OnFailure")
        await local.restarted("p", 2)
        assert sequence(local, "p")[2:5] == [
            ("Running", "waiting RunContainerError"),
            ("Running", "waiting CrashLoopBackOff"),
            ("Running", "waiting RunContainerError"),
        ]
        last = local.state(local.history(POD, "p")[-1])["lastState"]["terminated"]
        assert (last["reason"], last["exitCode"]) == ("StartError", 128)

    on_controllers(story)


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
def test_a_pod_that_is_deleted_in_its_init_container_fails(
    on_controllers: Run, policy: str
) -> None:
    async def story(local: Any) -> None:
        ignores = "import signal; signal.signal(15, signal.SIG_IGN); " + SLEEP
        initial = {"name": "first", "image": "python", "command": local.python(ignores)}
        local.create_pod(
            "p",
            local.python("pass"),
            InitContainers=[initial],
            RestartPolicy=policy,
            TerminationGracePeriodSeconds=1,
        )
        await local.until(
            POD, "p", lambda p: reported(p["status"], "initContainerStatuses") == "running"
        )
        await asyncio.sleep(0.2)  # until it ignores the signal
        local.api.delete(POD, "default", "p")
        last = await local.deleted(POD, "p")
        assert last["status"]["phase"] == "Failed"
        assert reported(last["status"], "initContainerStatuses") == "terminated 137"
        assert reported(last["status"]) == "waiting PodInitializing"

    on_controllers(story)


def test_the_generation_counts_the_deletion_and_the_kubelet_observes_it(
    on_controllers: Run,
) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python(SLEEP))
        running = await local.phase("p", "Running")
        assert running["metadata"]["generation"] == running["status"]["observedGeneration"] == 1
        assert running["status"]["conditions"][0]["observedGeneration"] == 1
        local.api.delete(POD, "default", "p")
        last = await local.deleted(POD, "p")
        assert last["metadata"]["generation"] == last["status"]["observedGeneration"] == 2
        assert datetime.fromisoformat(last["metadata"]["deletionTimestamp"])

    on_controllers(story)


def test_every_pod_has_an_account_and_a_volume_for_its_token(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        made = local.create_pod("p", local.python("pass"))
        assert made["spec"]["serviceAccountName"] == "default"
        (volume,) = made["spec"]["volumes"]
        assert volume["name"].startswith("kube-api-access-")
        (mount,) = made["spec"]["containers"][0]["volumeMounts"]
        assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
        await local.phase("p", "Succeeded")
        none = local.create_pod("q", local.python("pass"), AutomountServiceAccountToken=False)
        assert "volumes" not in none["spec"]

    on_controllers(story)
