"""How a deployment fails, and what it says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from harness.faults.actions import Forbidden
from harness.faults.plan import Fault

from kfp_pytorch.launcher.constants import INFERENCE_SERVICE, POD
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.deploy import Timing

NAMESPACE = "default"
NAME = "digits"
URL = "http://digits.default.example.com"

Object = dict[str, Any]
Start = Callable[..., Any]
Step = KServe = ThreadedServer = Clock = Any
Unnoticed = Callable[[], Any]
Until = Callable[..., Any]


def crashed(name: str, message: str, restarts: int = 2) -> Object:
    end = {"exitCode": 1, "reason": "Error", "message": message, "startedAt": None}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off"}
    return {
        "name": name,
        "image": "i:1",
        "imageID": "",
        "ready": False,
        "restartCount": restarts,
        "state": {"waiting": waiting},
        "lastState": {"terminated": end},
    }


def runs_unready() -> Object:
    """The status of a server that has started and never gets ready."""
    started = {"running": {"startedAt": "2025-11-27T12:00:00Z"}}
    return crashed("kserve-container", "", restarts=0) | {"state": started, "lastState": {}}


def test_a_download_that_keeps_failing_ends_the_step_with_the_initializers_log(
    kserve: KServe, update: Callable[..., Step]
) -> None:
    step = update()
    carried = kserve.rolls_out(new=1, total=2, available=1)
    status = crashed("storage-initializer", "Failed to fetch model.")
    pod = kserve.pod(carried, phase="Pending", initContainerStatuses=[status])
    kserve.log(pod, "storage-initializer", "Copying s3://b/m\nNo model found in s3://b/m")
    message = step.failed()
    assert "'storage-initializer' of the new revision keeps crashing" in message.splitlines()[0]
    assert "The previous revision still serves." in message
    assert "No model found in s3://b/m" in message


def test_what_a_predictor_wrote_is_told_by_its_lines_and_a_progress_bar_by_its_last_state(
    kserve: KServe, update: Callable[..., Step]
) -> None:
    bar = "\r".join(f"{n}%|#| {n}/100" for n in range(101))
    step = update()
    carried = kserve.rolls_out(new=1, total=2, available=1)
    status = crashed("storage-initializer", f"The file \x85 is\u2028 not there.\n{bar}\r")
    pod = kserve.pod(carried, phase="Pending", initContainerStatuses=[status])
    kserve.log(pod, "storage-initializer", f"No \x85 model\n{bar}\nbye")
    first, *rest = step.failed().split("\n")
    assert first.endswith("exit code 1: 100%|#| 100/100.")
    place = rest.index("No \x85 model")
    assert rest[place + 1 :] == ["100%|#| 100/100", "bye"]


def test_a_person_reads_what_failed_what_to_do_and_what_it_rests_on(
    kserve: KServe, update: Callable[..., Step], unnoticed: Unnoticed
) -> None:
    status = crashed("kserve-container", "", restarts=0)
    status["state"] = {"terminated": status.pop("lastState")["terminated"]}
    with unnoticed():
        step = update(timeout=1)
        carried = kserve.rolls_out(new=1, total=2, available=1)
        pod = kserve.pod(carried, phase="Running", containerStatuses=[status])
        kserve.log(pod, "kserve-container", "ValueError: export/model.json is not there")
        kserve.event("FailedMount", "the volume was slow")
    assert (
        step.failed()
        == """\
InferenceService default/digits does not serve the new revision: after 1 s (timeout) it still \
waits for pods of the new revision: 1 of 1 made, 1 available, 2 in all.
What to do: The end of its log is below: correct the model, its server or env.
The previous revision still serves. The service was left as it is.
Container kserve-container of pod digits-predictor-1 ended with exit code 1. The end of its log:
ValueError: export/model.json is not there
Event of pod digits-predictor-1: FailedMount: the volume was slow"""
    )


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [(137, "OOMKilled", "more memory than its limit"), (0, "Completed", "keeps ending")],
)
def test_a_container_that_ends_again_and_again_is_told_with_why(
    kserve: KServe, start: Start, until: Until, code: int, reason: str, said: str
) -> None:
    step = start()
    until(kserve.service)
    carried = kserve.rolls_out(available=0)
    status = crashed("kserve-container", "")
    status["lastState"]["terminated"] |= {"exitCode": code, "reason": reason}
    kserve.pod(carried, phase="Running", containerStatuses=[status])
    assert said in step.failed().splitlines()[0]


def test_a_server_that_runs_and_never_is_ready_is_told_with_its_log_and_its_probe(
    kserve: KServe, start: Start, until: Until, unnoticed: Unnoticed
) -> None:
    with unnoticed():
        step = start(timeout=1)
        until(kserve.service)
        carried = kserve.rolls_out(available=0)
        pod = kserve.pod(carried, phase="Running", containerStatuses=[runs_unready()])
        kserve.log(pod, "kserve-container", "loading shard 1 of 9")
        kserve.event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503")
    message = step.failed()
    assert "Container kserve-container of pod digits-predictor-1 runs, but is not ready." in message
    assert "loading shard 1 of 9" in message
    assert "Readiness probe failed" in message


def test_a_message_stays_readable_whatever_a_server_or_a_controller_wrote(
    kserve: KServe, start: Start, until: Until, unnoticed: Unnoticed
) -> None:
    info = {"reason": "ModelLoadFailed", "message": "z" * 50_000}
    model = {"transitionStatus": "InProgress", "lastFailureInfo": info}
    with unnoticed():
        step = start(timeout=1)
        until(kserve.service)
        carried = kserve.rolls_out(available=0)
        pod = kserve.pod(carried, phase="Running", containerStatuses=[runs_unready()])
        kserve.log(pod, "kserve-container", "\n".join(["x" * 50_000] * 30))
        kserve.event("FailedMount", "y" * 50_000)
        kserve.says("False", modelStatus=model)
    assert len(step.failed()) < 13_000


def test_a_model_that_kserve_says_did_not_load_fails_where_pods_may_not_be_read(
    quick: Timing, kserve: KServe, start: Start, until: Until, server: ThreadedServer
) -> None:
    server.faults.add(Fault(Forbidden(), "list", "*/pods", times=None))
    step = start(replace(quick, load_grace=0.3))
    until(kserve.service)
    kserve.rolls_out(available=0)
    info = {"reason": "ModelLoadFailed", "message": "No space left on device", "exitCode": 1}
    copies = {"failedCopies": 1, "totalCopies": 0}
    states = {"activeModelState": "Loaded", "targetModelState": "FailedToLoad"}
    failed = {"transitionStatus": "BlockedByFailedLoad", "lastFailureInfo": info, "copies": copies}
    failed["states"] = states
    kserve.says("False", modelStatus=failed)
    words = "its model did not load: ModelLoadFailed: No space left on device"
    first, *rest = step.failed().splitlines()
    assert words in first
    states = "BlockedByFailedLoad, the new model FailedToLoad, the serving one Loaded"
    assert f"KServe says of the model: {states}" in rest


def test_a_model_that_loads_at_a_second_try_has_not_failed(
    quick: Timing, kserve: KServe, start: Start, until: Until, clock: Clock
) -> None:
    step = start(replace(quick, load_grace=60.0), timeout=3600)
    until(kserve.service)
    for _ in range(3):
        kserve.says("False", modelStatus={"transitionStatus": "BlockedByFailedLoad"})
        assert step.goes_on()
        clock.ahead += 30.0
        assert step.goes_on()
        kserve.says("False", modelStatus={"transitionStatus": "InProgress"})
        assert step.goes_on()
    kserve.rolls_out()
    kserve.says("True", url=URL, modelStatus={"transitionStatus": "UpToDate"})
    step.succeeded()


def test_a_service_that_somebody_stopped_is_not_written_to_nor_waited_for(
    kserve: KServe, start: Start, deployed: Object
) -> None:
    def stop(obj: Object) -> None:
        obj["metadata"].setdefault("annotations", {})["serving.kserve.io/stop"] = "true"

    kserve._mutate(INFERENCE_SERVICE, NAME, stop)
    message = start(metadata={"sha256": "2"}).failed()
    assert "kubectl annotate inferenceservice digits serving.kserve.io/stop-" in message
    now = kserve.service() or {}
    assert now["metadata"]["generation"] == deployed["metadata"]["generation"]


def test_a_ready_revision_behind_an_ingress_that_is_not_is_not_said_to_be_nothing(
    kserve: KServe, start: Start, until: Until, unnoticed: Unnoticed
) -> None:
    ingress = {"type": "IngressReady", "status": "False", "reason": "X", "message": "no gateway"}
    with unnoticed():
        step = start(timeout=1)
        until(kserve.service)
        kserve.rolls_out()
        kserve.says("False")
        kserve.says(conditions=[ingress, {"type": "Stopped", "status": "False"}])
    message = step.failed()
    assert "The new revision's pods are ready, but the service is not" in message
    assert "Condition IngressReady is False: X no gateway" in message
    assert "Stopped" not in message


def test_crashes_of_the_old_revision_do_not_fail_the_new_one(
    kserve: KServe, update: Callable[..., Step]
) -> None:
    status = crashed("kserve-container", "out of memory")
    kserve.pod("another hash", phase="Running", containerStatuses=[status])
    step = update()
    assert step.goes_on()
    kserve.rolls_out()
    step.succeeded()


def test_a_first_crash_may_be_followed_by_a_success(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start()
    until(kserve.service)
    carried = kserve.rolls_out(available=0)
    status = crashed("storage-initializer", "connection reset", restarts=1)
    status["state"] = {"running": {"startedAt": "2025-11-27T12:00:00Z"}}
    kserve.pod(carried, phase="Pending", initContainerStatuses=[status])
    assert step.goes_on()
    kserve.serves()
    step.succeeded()


def test_a_container_that_is_ready_after_its_crashes_keeps_crashing_no_more(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start()
    until(kserve.service)
    carried = kserve.rolls_out(new=2, total=2, available=1)
    status = crashed("kserve-container", "no bucket yet", restarts=3)
    status |= {"state": {"running": {"startedAt": "2025-11-27T12:00:00Z"}}, "ready": True}
    kserve.pod(carried, phase="Running", containerStatuses=[status])
    assert step.goes_on(), "the other pod is on its way"
    kserve.serves()
    step.succeeded()


@pytest.mark.parametrize("gone", [{"phase": "Failed", "reason": "Evicted"}, {"phase": "Running"}])
def test_crashes_of_a_pod_that_the_cluster_takes_away_are_no_news(
    kserve: KServe, start: Start, until: Until, gone: Object
) -> None:
    step = start()
    until(kserve.service)
    carried = kserve.rolls_out(available=0)
    pod = kserve.pod(carried)
    if gone["phase"] == "Running":
        kserve.server.call(kserve.server.api.delete, POD, "default", pod["metadata"]["name"])
    status = crashed("kserve-container", "killed", restarts=3)
    kserve.pod_says(**gone, containerStatuses=[status])
    assert step.goes_on(), "another pod takes its place"
    kserve.serves()
    step.succeeded()


def test_a_time_out_names_what_is_missing_with_the_pods_events(
    kserve: KServe, start: Start, until: Until, unnoticed: Unnoticed
) -> None:
    words = 'Multi-Attach error for volume "pvc-1": Volume is already used by pod(s) train-master-0'
    with unnoticed():
        step = start(timeout=1)
        until(kserve.service)
        carried = kserve.rolls_out(available=0)
        created = {"name": "kserve-container", "state": {"waiting": {"reason": "PodInitializing"}}}
        kserve.pod(carried, phase="Pending", containerStatuses=[created])
        kserve.event("FailedAttachVolume", words)
    first, advice, *message = step.failed().splitlines()
    assert "after 1 s (timeout) it still waits for pods of the new revision" in first
    assert f"; digits-predictor-1: FailedAttachVolume: {words}" in first
    assert "ReadWriteMany" in advice
    assert "Nothing serves. The service was left as it is." in message


def test_a_predictor_that_no_node_takes_is_told_first_and_in_the_schedulers_words(
    kserve: KServe, start: Start, until: Until, unnoticed: Unnoticed
) -> None:
    words = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unfit = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    with unnoticed():
        step = start(timeout=1)
        until(kserve.service)
        carried = kserve.rolls_out(available=0)
        kserve.pod(carried, phase="Pending", conditions=[unfit | {"message": words}])
    assert f"; digits-predictor-1: Unschedulable: {words}" in step.failed().splitlines()[0]


def test_a_spec_that_kserve_cannot_serve_fails_soon_in_its_words(
    kserve: KServe, start: Start, until: Until
) -> None:
    step = start(model_format="", runtime="gone")
    until(kserve.service)
    info = {"reason": "RuntimeNotRecognized", "message": "Waiting for runtime to become available"}
    model = {"transitionStatus": "InvalidSpec", "lastFailureInfo": info}
    kserve.says("False", modelStatus=model)
    message = step.failed()
    assert "RuntimeNotRecognized: Waiting for runtime to become available" in message


def test_a_refusal_of_the_last_spec_is_outwaited(
    quick: Timing, kserve: KServe, update: Callable[..., Step]
) -> None:
    model = {"transitionStatus": "InvalidSpec", "lastFailureInfo": {"reason": "RuntimeDisabled"}}
    kserve.says("False", modelStatus=model)
    step = update(replace(quick, refusal_grace=60.0))
    assert step.goes_on()
    kserve.rolls_out()
    kserve.says("True", url=URL, modelStatus={"transitionStatus": "UpToDate"})
    step.succeeded()


def test_a_refusal_may_have_been_over_while_the_server_was_away(
    quick: Timing, kserve: KServe, start: Start, server: ThreadedServer, until: Until, clock: Clock
) -> None:
    step = start(replace(quick, refusal_grace=60.0, unavailable_after=0.5), timeout=3600)
    until(kserve.service)
    kserve.says("False", modelStatus={"transitionStatus": "InvalidSpec"})
    assert step.goes_on()
    server.go_away(1.0)
    clock.ahead += 70.0
    assert step.goes_on()
    kserve.rolls_out()
    kserve.says("True", url=URL, modelStatus={"transitionStatus": "UpToDate"})
    step.succeeded()


def test_a_canary_of_a_standard_service_is_refused_before_anything_is_written(
    kserve: KServe, start: Start, deployed: Object
) -> None:
    step = start(metadata={"sha256": "2"}, canary_traffic_percent=10)
    assert "service 'digits' is in Standard mode" in step.failed(InputError)
    now = kserve.service()
    assert now is not None
    assert now["metadata"]["generation"] == deployed["metadata"]["generation"]


def test_a_model_on_a_claim_that_is_not_there_is_refused(kserve: KServe, start: Start) -> None:
    step = start(metadata={"storage_uri": "pvc://elsewhere/export"})
    assert "has no PersistentVolumeClaim 'elsewhere'" in step.failed(InputError)
    assert kserve.service() is None


def test_a_claim_of_the_same_name_in_another_namespace_is_doubted_at_once_and_at_the_end(
    kserve: KServe, start: Start, until: Until, capsys: Any
) -> None:
    warning = (
        "in namespace 'train', and is served from the claim of that name in namespace 'default'"
    )
    step = start(metadata={"namespace": "train"}, timeout=1)
    until(kserve.service)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"warning: The model was written to 'pvc://kfp-pytorch/export' {warning}" in printed
    assert warning in step.failed()
    assert "is served from" not in start(metadata={"namespace": NAMESPACE}, timeout=1).failed()
    bucket = {"namespace": "train", "storage_uri": "s3://b/m"}
    assert "is served from" not in start(metadata=bucket, timeout=1).failed()


def test_a_host_too_long_is_refused_before_anything_is_written(
    kserve: KServe, start: Start
) -> None:
    assert "a service's name may have" in start(service_name="a" * 60).failed(InputError)


def test_no_request_deletes_a_service(
    kserve: KServe, start: Start, deployed: Object, server: ThreadedServer
) -> None:
    start(metadata={"sha256": "2"}, timeout=1).failed()
    assert kserve.service() is not None
    assert not [r for r in server.requests if r.verb == "delete"]


def test_knative_mode_is_refused_within_seconds_where_there_is_no_knative(
    start: Start, kserve: KServe
) -> None:
    began = time.monotonic()
    message = start(Timing(), deployment_mode="Knative").failed(InputError)
    assert time.monotonic() - began < 30
    assert "no revisions.serving.knative.dev" in message
    assert "Set deployment_mode to 'Standard'" in message
    assert kserve.service() is None
