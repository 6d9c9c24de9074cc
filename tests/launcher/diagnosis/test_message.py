from __future__ import annotations

import json
from typing import Any

import pytest
from harness.objects.evident import CAUSE, container, end, event, first_line, job, of, pod
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.waiting.evidence import Evidence


def failure(rank: int, time: float, kind: str, message: str, traceback: str = "") -> str:
    error = {
        "rank": rank,
        "time": time,
        "type": kind,
        "message": message,
        "traceback": traceback or f"Traceback (most recent call last):\n{kind}: {message}",
    }
    return json.dumps({"version": 1, "status": "failed", "error": error})


def test_a_script_that_raises_is_named_with_its_rank_its_pod_and_its_traceback() -> None:
    boom = failure(1, 5.0, "ValueError", "no such data set: 'cats'")
    lost = failure(0, 6.0, "DistBackendError", "Connection closed by peer")
    found = of(
        pod(0, container(state=end(1, message=lost))),
        pod(1, container(state=end(1, message=boom))),
        logs={"j-worker-0": "starting\nloading cats", "j-master-0": "waiting"},
    )
    assert first_line(found) == "Rank 1 (j-worker-0) raised ValueError: no such data set: 'cats'."
    assert "The first error (rank 1, j-worker-0):\n  Traceback (most" in found.message
    assert "The last lines of j-worker-0:\n  starting\n  loading cats" in found.message
    assert CAUSE in found.message
    assert found.short == "Rank 1 (j-worker-0) raised ValueError: no such data set: 'cats'"


def test_words_about_lost_peers_never_hide_the_rank_that_raised_later() -> None:
    lost = failure(0, 1.0, "DistNetworkError", "Connection reset by peer")
    boom = failure(1, 2.0, "KeyError", "'label'")
    found = of(
        pod(0, container(state=end(1, message=lost))), pod(1, container(state=end(1, message=boom)))
    )
    assert first_line(found).startswith("Rank 1 (j-worker-0) raised KeyError")


def test_killed_for_memory_names_the_limit_and_beats_what_others_say() -> None:
    lost = failure(0, 1.0, "DistBackendError", "Connection closed by peer")
    found = of(
        pod(0, container(state=end(1, message=lost))),
        pod(
            1,
            container(
                state={"waiting": {"reason": "CrashLoopBackOff"}},
                lastState=end(137, "OOMKilled"),
                restarts=3,
            ),
            memory="16Gi",
        ),
    )
    assert first_line(found) == (
        "j-worker-0 ran out of memory: OOMKilled, exit code 137 (SIGKILL), at its limit of 16Gi."
    )
    assert "Raise memory" in found.message
    assert "before its restart, pytorch waits: CrashLoopBackOff, 3 restarts" in found.message


def test_killed_by_something_else_is_told_from_killed_for_memory() -> None:
    found = of(pod(0, container(state=end(137))))
    assert first_line(found) == "j-master-0 ended with exit code 137 (SIGKILL)."
    assert "Something outside killed it" in found.message


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("ImagePullBackOff", "cannot pull the image"),
        ("ErrImagePull", "cannot pull the image"),
        ("InvalidImageName", "not valid"),
        ("CreateContainerConfigError", "cannot be configured"),
    ],
)
def test_a_container_that_cannot_start_is_told_in_the_kubelet_s_words(
    reason: str, said: str
) -> None:
    words = "Back-off pulling image: not found"
    waiting = {"waiting": {"reason": reason, "message": words}}
    found = of(pod(0, container(state={"running": {}})), pod(1, container(state=waiting)))
    line = first_line(found)
    assert said in line
    assert f"{reason}, image 'train:1': {words}" in line
    assert "What to do:" in found.message


def test_an_init_container_s_image_is_named_as_such() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no route"}}
    found = of(pod(1, init=(container("init-pytorch", state=waiting),)))
    assert "the init container 'init-pytorch' cannot pull the image" in first_line(found)
    assert "'alpine:3.10'" in first_line(found)


def test_a_command_that_does_not_exist() -> None:
    words = 'exec: "trian": executable file not found in $PATH'
    found = of(pod(0, container(state=end(128, "StartError", words))))
    assert words in first_line(found)
    assert "Check command" in found.message


def test_the_scheduler_s_words_come_with_the_replicas_they_are_about() -> None:
    words = "0/5 nodes are available: 5 Insufficient nvidia.com/gpu."
    unfit = {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
        ],
        "phase": "Pending",
    }
    found = of(*(pod(i, on="", **unfit) for i in range(8)), pod(8))
    assert first_line(found).startswith(
        "No node takes j-master-0, j-worker-0, j-worker-1 and 5 more (8 of 9 pods). "
        f"The scheduler says: {words[:-1]}"
    )
    assert "Ask for less nvidia.com/gpu" in found.message


def test_a_claim_that_is_not_there() -> None:
    words = 'persistentvolumeclaim "kfp-pytorch" not found'
    unfit = {"conditions": [{"type": "PodScheduled", "status": "False", "message": words}]}
    found = of(pod(0, on="", **unfit))
    assert words in first_line(found)
    assert "correct output_uri" in found.message


def test_a_claim_that_another_node_holds() -> None:
    words = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x'
    found = of(pod(1, phase="Pending"), events=[event("j-worker-0", "FailedAttachVolume", words)])
    assert "Multi-Attach" in first_line(found)
    assert "ReadWriteMany" in found.message


@pytest.mark.parametrize(
    "status",
    [
        {"reason": "Evicted", "message": "The node was low on resource: memory."},
        {
            "conditions": [
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": "preempting to accommodate a higher priority pod",
                }
            ]
        },
        {
            "conditions": [
                {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByTaintManager",
                    "message": "deleting due to NoExecute taint",
                }
            ]
        },
        {"reason": "NodeLost", "message": "Node gpu-7 which was running pod is unresponsive"},
        {"reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough resource"},
        {"reason": "NodeAffinity", "message": "Predicate NodeAffinity failed"},
        {"reason": "TopologyAffinityError", "message": "Resources cannot be allocated"},
    ],
)
def test_a_pod_that_the_cluster_took_away_is_no_fault_of_the_program(
    status: dict[str, Any],
) -> None:
    lost = failure(0, 1.0, "DistBackendError", "Connection closed by peer")
    gone = pod(1, on="gpu-7", phase="Failed", **status)
    found = of(pod(0, container(state=end(1, message=lost))), gone)
    assert first_line(found).startswith("j-worker-0 was taken off gpu-7 (")
    assert "The cluster did this" in found.message


def test_a_container_that_its_node_lost_sight_of_is_no_fault_of_the_program() -> None:
    words = "The container could not be located when the pod was terminated"
    lost = container(state=end(137, "ContainerStatusUnknown", words))
    found = of(pod(0, container(state=end(1))), pod(1, lost, phase="Failed"))
    assert first_line(found) == f"j-worker-0 was lost with its node: {words}."
    assert "The cluster did this" in found.message


def test_a_pods_own_deadline_is_named_as_such() -> None:
    found = of(pod(0), pod(1, phase="Failed", reason="DeadlineExceeded"))
    assert first_line(found) == "j-worker-0 ran for longer than its activeDeadlineSeconds."


def test_a_pod_that_was_recreated_after_an_eviction_still_tells() -> None:
    gone = pod(1, on="gpu-7", phase="Failed", reason="Evicted", message="disk pressure")
    found = of(pod(0), pod(1), past_pods=[gone])
    assert "disk pressure" in first_line(found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ('pods "j-master-0" is forbidden: exceeded quota: gpus, requested: 8', "quota is used up"),
        (
            'admission webhook "policy.acme" denied the request: no latest tags',
            "denied the request",
        ),
        ('pods "j-master-0" is forbidden: violates PodSecurity "restricted:latest"', "not allow"),
    ],
)
def test_why_the_operator_could_create_no_pod(words: str, said: str) -> None:
    found = of(events=[event("j", "FailedCreatePod", words)])
    assert said in first_line(found)
    assert words in found.message


def test_an_operator_that_never_answered() -> None:
    found = diagnose(
        Evidence(PYTORCH_JOB, job=job(status={})), "The job was not acknowledged within 60 s."
    )
    assert "has not acknowledged the job" in first_line(found)
    assert "Check that the operator runs" in found.message


def test_a_job_still_in_its_queue() -> None:
    suspended = job(spec={"runPolicy": {"suspend": True}}, status={})
    found = diagnose(Evidence(PYTORCH_JOB, job=suspended), "The job waited 3600 s in its queue.")
    assert "suspended" in first_line(found)
    assert "queue_timeout" in found.message


def test_the_deadline_of_the_operator() -> None:
    words = "PyTorchJob j has failed because it was active longer than specified deadline"
    failed = {"type": "Failed", "status": "True", "reason": "PyTorchJobFailed", "message": words}
    found = of(pod(0), job=job(status={"conditions": [failed]}))
    assert "active longer than specified deadline" in first_line(found)
    assert "active_deadline" in found.message


def test_a_worker_that_waits_for_a_master_that_does_not_start() -> None:
    found = of(pod(1, init=(container("init-pytorch", state={"running": {}}),), phase="Pending"))
    assert "j-worker-0 still waits in the init container 'init-pytorch'" in first_line(found)


def test_how_an_earlier_pod_of_the_name_ended_does_not_explain_the_last_failure() -> None:
    """A suspension deletes the pods, whose containers then end with SIGKILL."""
    suspended = pod(0, container(state=end(137, at="2025-11-27T11:00:00Z")))
    found = of(pod(0, container(state=end(3))), past_pods=[suspended])
    assert first_line(found) == "j-master-0 ended with exit code 3."
    assert "exit code 137" in first_line(of(pod(0), past_pods=[suspended]))


def test_a_failure_that_says_nothing_is_no_reason() -> None:
    """Nor is it a log, which would be shown below."""
    found = of(pod(0, container(state=end(3, message='{"version": 1, "status": "failed"}'))))
    assert first_line(found) == "j-master-0 ended with exit code 3."
    assert "It left no log that could be read." in found.message


def test_a_log_of_json_that_only_the_kubelet_kept_is_shown() -> None:
    lines = '{"level": "info", "event": "reads"}\n{"level": "error", "event": "no config.toml"}'
    found = of(pod(0, container(state=end(3, message=lines))))
    assert "What to do: Its last log lines are below" in found.message
    assert found.message.endswith('  {"level": "error", "event": "no config.toml"}')


def test_a_proxy_that_keeps_a_finished_pod_alive() -> None:
    done = container(state={"terminated": {"exitCode": 0, "reason": "Completed"}})
    found = of(pod(0, done, container("istio-proxy", state={"running": {}})))
    assert "istio-proxy runs on and keeps the job running" in first_line(found)


def test_of_hundreds_of_pods_the_first_to_fail_are_named_and_the_rest_counted() -> None:
    pods = [
        pod(node, container(state=end(1, at=f"2025-11-27T12:{59 - node % 60:02}:00Z")), on="")
        for node in range(512)
    ]
    found = of(*pods)
    assert "- j-worker-58, j-worker-118, j-worker-178 and 509 more: Running" in found.message
    assert len(found.message) < 2_000


def test_the_message_stays_readable_whatever_the_program_wrote() -> None:
    log = "\n".join(["x" * 5_000] * 300)
    found = of(
        pod(0, container(state=end(1, message=failure(0, 1.0, "E", "y" * 9_000, "z\n" * 9_000)))),
        logs={"j-master-0": log},
    )
    assert len(found.message) < 20_000
    assert len(found.short) <= 200
    assert "\n" not in found.short


def test_missing_logs_never_hide_the_failure() -> None:
    evidence = Evidence(
        PYTORCH_JOB,
        job=job(),
        pods={"j-master-0": pod(0, container(state=end(3)))},
        notes=["The logs could not be read: pods/log is forbidden."],
    )
    found = diagnose(evidence, CAUSE)
    assert first_line(found) == "j-master-0 ended with exit code 3."
    assert "What the launcher could not do:\n- The logs could not be read" in found.message


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "a\npython: can't open '/x.py'\n",
            "ends with: python: can't open '/x.py'. More",
        ),
        ("y" * 1000, f"ends with: {'y' * 199}…. More"),
        ("words\n=====\n", "last log lines are below"),
        ("ChildFailedError: \ntraceback : To enable traceback see", "last log lines are below"),
    ],
)
def test_an_end_that_only_the_log_explains_is_told_with_its_last_line(log: str, told: str) -> None:
    pods = {"j-master-0": pod(0, container(state=end(2)))}
    found = diagnose(Evidence(PYTORCH_JOB, job=job(), pods=pods, logs={"j-master-0": log}), CAUSE)
    assert first_line(found) == "j-master-0 ended with exit code 2."
    assert told in found.message.splitlines()[1]


def test_with_no_evidence_the_cause_itself_is_the_message() -> None:
    found = diagnose(Evidence(PYTORCH_JOB), "The job was deleted while it ran.")
    assert first_line(found) == "The job was deleted while it ran."
    assert found.short == "The job was deleted while it ran"


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("metadata", "labels", "spec", "containers", "resources", "status", "state"),
                    *("containerStatuses", "terminated", "reason", "message", "conditions"),
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(["metadata", "spec", "status", "reason"]), junk)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(objects, objects, objects, st.text(max_size=30))
def test_no_evidence_however_odd_raises(job: Any, pod: Any, event: Any, log: str) -> None:
    evidence = Evidence(
        PYTORCH_JOB, job=job, pods={"p": pod}, past_pods=[pod], events=[event], logs={"p": log}
    )
    diagnose(evidence, "It failed.")
