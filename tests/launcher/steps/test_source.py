"""The ConfigMap of a job's code, on an API server: from before the job to its deletion."""

from __future__ import annotations

from typing import Any

from harness.faults.actions import Answer, Forbidden

from kfp_pytorch.launcher.constants import CONFIG_MAP
from kfp_pytorch.launcher.errors import JobFailed, StepError

SOURCE = {"files": {"train.py": "print(1)\r\n", "package/net.bin": {"base64": "AP8="}}}
NAMES = ["a/x.py", "b/x.py", "b/übung 1.py", "b/_bung 1.py", "empty.py", "日本/.hidden"]


def config_maps(hands: Any) -> list[dict[str, Any]]:
    return [
        found
        for found in hands.server.call(hands.server.api.list, CONFIG_MAP, "default")
        if "-source-" in found["metadata"]["name"]
    ]


def test_it_is_immutable_there_before_the_job_owned_by_it_and_mounted_read_only(
    step: Any, hands: Any
) -> None:
    run = step(source=SOURCE, env={"PYTHONPATH": "/own"})
    job = hands.job(run.job)
    (found,) = config_maps(hands)
    assert found["immutable"] is True
    assert found["data"] == {"1-train.py": "print(1)\r\n"}
    assert found["binaryData"] == {"0-package_net.bin": "AP8="}
    hands.until(lambda: config_maps(hands)[0]["metadata"].get("ownerReferences"))
    (owner,) = config_maps(hands)[0]["metadata"]["ownerReferences"]
    assert owner["uid"] == job["metadata"]["uid"]
    spec = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    volume = next(each for each in spec["volumes"] if "configMap" in each)
    assert volume["configMap"] == {
        "name": found["metadata"]["name"],
        "items": [
            {"key": "0-package_net.bin", "path": "package/net.bin"},
            {"key": "1-train.py", "path": "train.py"},
        ],
        "defaultMode": 0o555,
    }
    (container,) = spec["containers"]
    assert {
        "name": volume["name"], "mountPath": "/mnt/kfp-pytorch/source", "readOnly": True
    } in container["volumeMounts"]  # fmt: skip
    assert {"name": "PYTHONPATH", "value": "/mnt/kfp-pytorch/source:/own"} in container["env"]
    asked = [(r.verb, r.path.rpartition("/")[2]) for r in hands.server.requests]
    assert asked.index(("create", "configmaps")) < asked.index(("create", "pytorchjobs"))
    hands.success(run.job)
    run.succeeded()


def test_files_of_any_name_are_told_apart(step: Any, hands: Any) -> None:
    run = step(source={"files": {name: f"# {name}" for name in NAMES}}, cleanup="always")
    spec = hands.job(run.job)["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (volume,) = [each["configMap"] for each in spec["volumes"] if "configMap" in each]
    (found,) = config_maps(hands)
    texts = {item["path"]: found["data"][item["key"]] for item in volume["items"]}
    assert texts == {name: f"# {name}" for name in NAMES}
    hands.success(run.job)
    run.succeeded()


def test_it_is_gone_with_a_job_that_failed_and_with_one_that_cleanup_deletes(
    step: Any, hands: Any
) -> None:
    for ending in ("Failed", "Succeeded"):
        run = step(source=SOURCE, cleanup="always")
        hands.running(run.job)
        hands.ended(run.job, 1 if ending == "Failed" else 0)
        hands.set_conditions(run.job, ending)
        run.wait()
        hands.until(lambda: not config_maps(hands))


def test_the_job_of_a_later_attempt_has_it_though_the_first_job_took_it_along(
    step: Any, hands: Any
) -> None:
    first = step(source=SOURCE, cleanup="never")
    old = hands.job(first.job)["metadata"]["uid"]
    hands.set_conditions(first.job, "Failed: it broke")
    first.failed(JobFailed)
    second = step(source=SOURCE)
    hands.until(lambda: hands.job(second.job)["metadata"]["uid"] != old)
    new = hands.job(second.job)["metadata"]["uid"]

    def owners() -> list[str]:
        found = [each["metadata"].get("ownerReferences") or [] for each in config_maps(hands)]
        return [owner["uid"] for each in found for owner in each]

    hands.until(lambda: owners() == [new])
    hands.success(second.job)
    second.succeeded()


def test_an_attempt_that_adopts_the_job_leaves_it_as_it_is(step: Any, hands: Any) -> None:
    first = step(source=SOURCE)
    hands.job(first.job)
    hands.until(lambda: config_maps(hands)[0]["metadata"].get("ownerReferences"))
    (before,) = config_maps(hands)
    second = step(source=SOURCE)
    hands.success(first.job)
    first.succeeded()
    second.succeeded()
    assert config_maps(hands) == [before]


def test_a_signal_before_the_job_owns_it_leaves_neither(step: Any, hands: Any) -> None:
    with hands.unanswered():
        run = step(source=SOURCE)
        hands.job(run.job)
        assert not config_maps(hands)[0]["metadata"].get("ownerReferences")
        run.stopper.stop()
        hands.until(lambda: not hands.jobs())
        assert not config_maps(hands)
    run.failed(SystemExit)
    assert not config_maps(hands)


def test_a_step_that_may_make_none_says_which_permission_it_lacks(step: Any, hands: Any) -> None:
    hands.fault(Forbidden(), "create", "*/configmaps", times=None)
    message = step(source=SOURCE).failed(StepError)
    assert "configmaps" in message
    assert "create" in message
    assert "manifests/source" in message
    assert not hands.jobs()


def test_a_job_that_is_refused_leaves_none_behind(step: Any, hands: Any) -> None:
    hands.fault(Answer(422), "create", "*/pytorchjobs", times=None)
    step(source=SOURCE).failed(StepError)
    assert not config_maps(hands)
