"""PyTorchJobs as processes: the operator and the kubelet together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import EVENT, POD, PYTORCHJOB, SERVICE
from kfp_pytorch.local.apiserver.store.api import ApiError

Object = dict[str, Any]
Run = Callable[..., None]

SLEEP = "import time; time.sleep(600)"


def replica(code: str, count: int = 1, policy: str = "OnFailure") -> Object:
    container = {"name": "pytorch", "image": "i", "command": ["python", "-I", "-S", "-c", code]}
    template = {"spec": {"containers": [container]}}
    return {"replicas": count, "restartPolicy": policy, "template": template}


def conditions(job: Object) -> dict[str, str]:
    return {each["type"]: each["status"] for each in job["status"]["conditions"]}


def pods(local: Any) -> list[Object]:
    found: list[Object] = local.api.list(POD, "default")
    return found


def test_two_nodes_meet_at_the_masters_port_and_the_job_succeeds(on_controllers: Run) -> None:
    # Rank 0 serves one message at MASTER_ADDR:MASTER_PORT, and rank 1 takes it.
    code = (
        "import json, os, socket, time\n"
        "address = (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "if os.environ['RANK'] == '0':\n"
        "    listener = socket.create_server(address)\n"
        "    listener.accept()[0].sendall(b'met')\n"
        "else:\n"
        "    while True:\n"
        "        try: s = socket.create_connection(address); break\n"
        "        except OSError: time.sleep(0.01)\n"
        "    assert s.recv(3) == b'met'\n"
        "print(json.dumps({k: os.environ[k] for k in ('RANK', 'WORLD_SIZE', 'PET_NNODES')}))"
    )

    async def story(local: Any) -> None:
        local.create_job("j", {"Master": replica(code), "Worker": replica(code)})
        job = await local.condition("j", "Succeeded")
        assert conditions(job) == {"Created": "True", "Running": "False", "Succeeded": "True"}
        for name, rank in (("j-master-0", "0"), ("j-worker-0", "1")):
            pod = await local.phase(name, "Succeeded")
            printed = json.loads(local.log(pod, "pytorch"))
            assert printed == {"RANK": rank, "WORLD_SIZE": "2", "PET_NNODES": "2"}
        assert {each["metadata"]["name"] for each in local.api.list(SERVICE)} == {
            "j-master-0",
            "j-worker-0",
        }

    on_controllers(story)


def test_two_jobs_at_once_have_ports_of_their_own(on_controllers: Run) -> None:
    code = "import os; print(os.environ['MASTER_PORT'], os.environ['PET_MASTER_PORT'])"

    async def story(local: Any) -> None:
        ports = set()
        for name in ("a", "b"):
            local.create_job(name, {"Master": replica(code)})
            await local.condition(name, "Succeeded")
            pod = await local.phase(f"{name}-master-0", "Succeeded")
            port, same = local.log(pod, "pytorch").split()
            assert port == same
            ports.add(port)
        assert len(ports) == 2
        assert "23456" not in ports

    on_controllers(story)


def test_an_elastic_job_has_the_address_of_its_first_worker(on_controllers: Run) -> None:
    code = "import os; print(os.environ['PET_RDZV_ENDPOINT'])"

    async def story(local: Any) -> None:
        policy = {"minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d"}
        local.create_job("j", {"Worker": replica(code, 2)}, elasticPolicy=policy)
        await local.condition("j", "Succeeded")
        printed = set()
        for index in range(2):
            pod = await local.phase(f"j-worker-{index}", "Succeeded")
            printed.add(local.log(pod, "pytorch").strip())
        (endpoint,) = printed
        assert endpoint.startswith("127.0.0.1:")

    on_controllers(story)


def test_a_crashing_script_fails_the_job_at_its_backoff_limit(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_job(
            "j",
            {"Master": replica("raise SystemExit(1)"), "Worker": replica(SLEEP)},
            runPolicy={"backoffLimit": 2, "cleanPodPolicy": "None"},
        )
        job = await local.condition("j", "Failed")
        assert "reached the specified backoff limit" in job["status"]["conditions"][-1]["message"]
        assert conditions(job)["Running"] == "False"
        async with asyncio.timeout(120):
            while pods(local):
                await asyncio.sleep(0.01)

    on_controllers(story)


def test_without_a_backoff_limit_a_crashing_script_never_fails_the_job(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_job("j", {"Master": replica("raise SystemExit(1)")})
        await local.until(
            POD,
            "j-master-0",
            lambda pod: pod["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) >= 3,
        )
        job = local.api.get(PYTORCHJOB, "default", "j")
        assert conditions(job) == {"Created": "True", "Running": "True"}

    on_controllers(story)


@pytest.mark.parametrize("policy", ["Never", "ExitCode"])
def test_a_failed_pod_that_is_not_restarted_fails_the_job(on_controllers: Run, policy: str) -> None:
    async def story(local: Any) -> None:
        replicas = {
            "Master": replica(SLEEP, policy=policy),
            "Worker": replica("raise SystemExit(1)", policy=policy),
        }
        local.create_job("j", replicas, runPolicy={"cleanPodPolicy": "Running"})
        await local.condition("j", "Failed")
        await local.deleted(POD, "j-master-0")
        (left,) = pods(local)
        assert left["metadata"]["name"] == "j-worker-0"

    on_controllers(story)


def test_a_pod_with_a_retryable_exit_code_is_recreated(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        code = "import time; time.sleep(0.05); raise SystemExit(130)"
        local.create_job("j", {"Master": replica(code, policy="ExitCode")})
        first = await local.phase("j-master-0", "Failed")
        await local.until(
            POD, "j-master-0", lambda pod: pod["metadata"]["uid"] != first["metadata"]["uid"]
        )
        await local.condition("j", "Restarting")

    on_controllers(story)


def test_running_workers_stay_after_a_success_unless_they_are_to_be_cleaned(
    on_controllers: Run,
) -> None:
    async def story(local: Any) -> None:
        for name, policy in (("kept", "None"), ("cleaned", "Running")):
            replicas = {"Master": replica("import time; time.sleep(0.2)"), "Worker": replica(SLEEP)}
            local.create_job(name, replicas, runPolicy={"cleanPodPolicy": policy})
        await local.condition("kept", "Succeeded")
        await local.deleted(POD, "cleaned-worker-0")
        names = {pod["metadata"]["name"] for pod in pods(local)}
        assert names == {"kept-master-0", "kept-worker-0", "cleaned-master-0"}

    on_controllers(story)


def test_a_job_and_its_objects_are_deleted_after_its_ttl(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_job("j", {"Master": replica("pass")}, runPolicy={"ttlSecondsAfterFinished": 1})
        last = await local.deleted(PYTORCHJOB, "j")
        assert conditions(last)["Succeeded"] == "True"
        async with asyncio.timeout(120):
            while pods(local) or local.api.list(SERVICE):
                await asyncio.sleep(0.01)

    on_controllers(story)


def test_a_job_past_its_deadline_fails_when_its_pod_ends(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        # The operator checks the deadline when a pod changes, not when it has passed.
        code = "import time; time.sleep(1.5)"
        local.create_job("j", {"Master": replica(code)}, runPolicy={"activeDeadlineSeconds": 1})
        job = await local.condition("j", "Failed")
        assert "longer than specified deadline" in job["status"]["conditions"][-1]["message"]
        async with asyncio.timeout(120):
            while pods(local):
                await asyncio.sleep(0.01)

    on_controllers(story)


def test_a_job_is_suspended_and_resumed(on_controllers: Run) -> None:
    def suspend(value: bool) -> Callable[[Object], None]:
        return lambda job: job["spec"]["runPolicy"].update(suspend=value)

    async def story(local: Any) -> None:
        local.create_job("j", {"Master": replica(SLEEP)}, runPolicy={"suspend": True})
        await local.condition("j", "Suspended")
        assert not pods(local)
        # One at each reconciliation: of the job, and of the status that the first one wrote.
        event = await local.event("j", "PyTorchJobSuspended")
        await local.until(EVENT, event["metadata"]["name"], lambda found: found["count"] == 2)
        local.api.mutate(PYTORCHJOB, "default", "j", suspend(False))
        await local.condition("j", "Running")
        local.api.mutate(PYTORCHJOB, "default", "j", suspend(True))
        job = await local.condition("j", "Suspended")
        assert conditions(job)["Running"] == "False"
        async with asyncio.timeout(120):
            while pods(local):
                await asyncio.sleep(0.01)

    on_controllers(story)


def test_the_pods_and_services_of_a_deleted_job_are_deleted(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_job("j", {"Master": replica(SLEEP), "Worker": replica(SLEEP)})
        await local.condition("j", "Running")
        local.api.delete(PYTORCHJOB, "default", "j")
        async with asyncio.timeout(120):
            while pods(local) or local.api.list(SERVICE):
                await asyncio.sleep(0.01)

    on_controllers(story)


def test_a_name_that_is_too_long_with_its_suffix_is_accepted_and_never_runs(
    on_controllers: Run,
) -> None:
    async def story(local: Any) -> None:
        name = "j" * 60
        local.create_job(name, {"Master": replica("pass")})
        event = await local.event(name, "FailedCreateService")
        assert "must be no more than 63 characters" in event["message"]
        assert "status" not in local.api.get(PYTORCHJOB, "default", name)

    on_controllers(story)


def test_a_job_with_a_refused_worker_has_no_condition_when_its_master_ends(
    on_controllers: Run,
) -> None:
    async def story(local: Any) -> None:
        worker = replica("pass")
        worker["template"]["spec"]["serviceAccountName"] = "nonsuch"
        local.create_job("j", {"Master": replica("pass"), "Worker": worker})
        event = await local.event("j", "FailedCreatePod")
        assert 'serviceaccount "nonsuch" not found' in event["message"]
        await local.phase("j-master-0", "Succeeded")
        assert "status" not in local.api.get(PYTORCHJOB, "default", "j")

    on_controllers(story)


def test_an_invalid_job_is_refused(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        with pytest.raises(ApiError, match="Forbidden: must be 1"):
            local.create_job("j", {"Master": replica("pass", 2)})

    on_controllers(story)
