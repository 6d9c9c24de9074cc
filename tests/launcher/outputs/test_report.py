from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import manifest
from kfp_pytorch.launcher.jobs.termination_messages import Outcome, Success
from kfp_pytorch.launcher.outputs.report import render
from kfp_pytorch.launcher.waiting.evidence import Evidence, TimelineEntry

START = datetime(2025, 11, 27, 12, 0, tzinfo=UTC)


def entry(seconds: int, what: str, detail: str = "") -> TimelineEntry:
    return TimelineEntry(START + timedelta(seconds=seconds), what, detail)


def pod(role: str, index: int, *, node: str = "gpu-1", ends: Any = (), restarts: int = 0) -> Any:
    status = {"name": "pytorch", "restartCount": restarts, "state": {}}
    for part, code, reason in ends:
        status[part] = {"terminated": {"exitCode": code, "reason": reason}}
    return {
        "metadata": {
            "name": f"j-{role}-{index}",
            "labels": {
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": str(index),
            },
        },
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "8"}}}
            ],
        },
        "status": {"phase": "Succeeded", "containerStatuses": [status]},
    }


def report(evidence: Evidence, success: Success | None = None, **inputs: Any) -> str:
    diagnosis = inputs.pop("diagnosis", "")
    parsed = parse_inputs(image="registry/train:1", namespace="team", **inputs)
    job = manifest(parsed, job_name="j", labels={}, annotations={}, owner=None)
    return render(evidence, parsed, job, Outcome(success=success), diagnosis)


def test_the_hyperparameters_come_first_with_their_values() -> None:
    values = {"lr": 0.1, "epochs": 3, "api_key": "abc"}
    text = report(Evidence(PYTORCH_JOB), hyperparameters=values)
    assert "| lr | 0.1 |\n| epochs | 3 |\n| api\\_key | (left out) |" in text
    assert text.index("## Hyperparameters") < text.index("| Image |")
    assert "abc" not in text
    assert "Hyperparameters" not in report(Evidence(PYTORCH_JOB))


def test_it_tells_what_ran_where_and_for_how_long() -> None:
    pods = [
        pod("worker", 0, node="gpu-2", ends=[("state", 0, "Completed")]),
        pod(
            "master",
            0,
            ends=[("state", 0, "Completed"), ("lastState", 137, "OOMKilled")],
            restarts=1,
        ),
    ]
    evidence = Evidence(
        PYTORCH_JOB,
        pods={p["metadata"]["name"]: p for p in pods},
        timeline=[
            entry(0, "created"),
            entry(60, "queued", "Kueue | queue a"),
            entry(3600, "running"),
            entry(7260, "succeeded"),
        ],
        notes=["could not read logs"],
    )
    text = report(evidence, Success("p", {"accuracy": 0.991}, 8), num_nodes=2, gpus_per_node=4)
    assert "| World size | 8 |" in text
    assert "| Nodes × processes | 2 × 4 |" in text
    assert "| Training took | 61 min |" in text
    assert "| accuracy | 0.991 |" in text
    assert "| 2025-11-27 12:01:00 | +60 s | queued | Kueue \\| queue a |" in text
    master = "| j-master-0 | gpu-1 | 4 nvidia.com/gpu | 1 | "
    assert master + "Succeeded; Completed exit code 0; OOMKilled exit code 137 (SIGKILL) |" in text
    assert text.index("j-master-0") < text.index("j-worker-0")
    assert "- could not read logs" in text


def test_a_world_size_that_a_script_did_not_report_is_left_out() -> None:
    assert "World size" not in report(Evidence(PYTORCH_JOB), Success("p", {"accuracy": 0.9}))


def test_the_job_as_submitted_can_be_copied_out_again() -> None:
    text = report(Evidence(PYTORCH_JOB), num_nodes=2, args=["```", "ünï"])
    block = re.search(r"(`{3,})json\n(.*)\n\1", text, re.DOTALL)
    assert block is not None
    job = json.loads(block[2])
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0][
        "args"
    ] == ["```", "ünï"]


def test_values_of_variables_that_sound_secret_are_left_out() -> None:
    text = report(
        Evidence(PYTORCH_JOB), env={"HF_TOKEN": "hf_123", "DB_PASSWORD": "pw9", "EPOCHS": 3}
    )
    assert "hf_123" not in text
    assert "pw9" not in text
    assert '"value": "3"' in text


def test_values_of_flags_that_sound_secret_are_left_out() -> None:
    hidden = ["--hf-token=hf_123", "--api-key", "k 9", "--password=a\nb7"]
    told = ["--tokenizer=bpe", "--max-tokens", "64", "--secret-santa=no"]
    text = report(Evidence(PYTORCH_JOB), command=["train", *hidden], args=[*told, "--token"])
    assert not any(value in text for value in ("hf_123", "k 9", "b7"))
    assert all(f'"{word}"' in text for word in ("train", "--api-key", *told, "--token"))


def test_words_of_the_cluster_cannot_break_the_page() -> None:
    evidence = Evidence(
        PYTORCH_JOB,
        timeline=[entry(0, "failed", "<script>x</script>\n| a | b |\n# head")],
        notes=["<b>"],
    )
    text = report(evidence, diagnosis="boom\n```\n<script>")
    assert "\n# head" not in text
    assert "| <script>" not in text
    assert "````text\nboom" in text


def test_a_failure_comes_first() -> None:
    text = report(Evidence(PYTORCH_JOB), diagnosis="rank 1 ran out of memory")
    assert text.index("rank 1 ran out of memory") < text.index("| Image |")


def test_of_hundreds_of_pods_those_with_trouble_are_shown() -> None:
    pods = [pod("worker", i) for i in range(511)]
    pods[400] = pod("worker", 400, ends=[("lastState", 1, "Error")], restarts=2)
    evidence = Evidence(PYTORCH_JOB, pods={p["metadata"]["name"]: p for p in pods})
    text = report(evidence, num_nodes=512)
    assert "| j-worker-400 |" in text
    assert "And 471 more pods" in text
    assert len(text) < 20_000


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (0, "Succeeded; Completed exit code 0"),
        (1, "Succeeded; Completed exit code 0; wait-first: "),
    ],
)
def test_an_init_container_is_named_and_only_when_it_failed(code: int, state: str) -> None:
    worker = pod("worker", 0, ends=[("state", 0, "Completed")])
    ended = {"terminated": {"exitCode": code, "reason": "Completed"}}
    worker["status"]["initContainerStatuses"] = [{"name": "wait_first", "state": ended}]
    row = next(
        line
        for line in report(Evidence(PYTORCH_JOB, {}, {"p": worker})).splitlines()
        if "gpu-1" in line
    )
    assert state.replace("wait-first", "wait\\_first") in row
    assert row.count("exit code") == 1 + code
