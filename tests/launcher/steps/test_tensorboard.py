from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.faults.actions import Answer, Forbidden, LostAnswer, Refuse
from harness.faults.plan import Fault
from harness.faults.restart import Restart
from kfp import dsl

from kfp_pytorch.launcher.constants import (
    CLAIM,
    OUTPUT_MOUNT,
    POD,
    TENSORBOARD,
    TRAINING_IMAGE,
    WORKFLOW,
)
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.steps import tensorboard

if TYPE_CHECKING:
    from harness.api_server import ThreadedServer

BOARDS = "*/tensorboards*"
UNKNOWN = Answer(404, body="404 page not found")


class Board:
    """The step `tensorboard`, run against a server."""

    def __init__(self, server: ThreadedServer, folder: Path) -> None:
        self.server = server
        self.artifact = dsl.Artifact(uri=str(folder / "ui" / "mlpipeline_ui_metadata"))
        self.guide = dsl.Markdown(uri=str(folder / "guide" / "how_to_open"))

    def run(self, **inputs: Any) -> str:
        defaults = {
            "output_uri": "pvc://kfp-pytorch/logs",
            "key": "run-1",
            "image": "",
            "output_secret": "",
            "namespace": "",
            "labels": {},
        }
        return tensorboard.run(self.artifact, self.guide, **{**defaults, **inputs})

    @property
    def shown(self) -> dict[str, Any]:
        (output,) = json.loads(Path(self.artifact.path).read_text())["outputs"]
        return output

    def claim(self, *modes: str) -> None:
        spec = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"metadata": {"name": "kfp-pytorch", "namespace": "default"}, "spec": spec}
        self.server.call(self.server.api.create, CLAIM, claim)

    def objects(self) -> list[dict[str, Any]]:
        return self.server.call(self.server.api.list, TENSORBOARD, "default")


@pytest.fixture
def board(api_server: ThreadedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    quick = replace(tensorboard._POLICY, unavailability_budget=0.5, first_contact=0.5)
    monkeypatch.setattr(tensorboard, "_POLICY", quick)
    return Board(api_server, tmp_path)


def test_the_kfp_viewer_gets_the_claim_as_a_volume(board: Board) -> None:
    board.run()
    shown = board.shown
    assert shown["type"] == "tensorboard"
    assert shown["source"] == "volume://logs/logs/run-1"
    assert shown["image"] == TRAINING_IMAGE
    spec = shown["pod_template_spec"]["spec"]
    assert spec["volumes"] == [
        {"name": "logs", "persistentVolumeClaim": {"claimName": "kfp-pytorch"}}
    ]
    (container,) = spec["containers"]
    assert container["volumeMounts"][0]["readOnly"] is True
    assert spec["securityContext"]["runAsNonRoot"] is True


def test_the_kfp_viewer_gets_a_bucket_by_its_uri_and_its_credentials_by_their_secret(
    board: Board,
) -> None:
    board.run(output_uri="minio://mlpipeline/x", output_secret="keys", image="tb:1")
    assert board.shown["source"] == "s3://mlpipeline/x/run-1"
    assert board.shown["image"] == "tb:1"
    container = board.shown["pod_template_spec"]["spec"]["containers"][0]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    board.run(output_uri="gs://bucket", output_secret="key")
    spec = board.shown["pod_template_spec"]["spec"]
    path = spec["containers"][0]["env"][0]["value"]
    assert path.startswith(spec["containers"][0]["volumeMounts"][0]["mountPath"])
    assert spec["volumes"][0]["secret"] == {"secretName": "key"}


def test_an_object_for_the_dashboard_is_made_once_for_all_tries(board: Board) -> None:
    board.claim("ReadWriteMany")
    said = board.run()
    (made,) = board.objects()
    assert made["spec"] == {"logspath": "pvc://kfp-pytorch/logs/run-1"}
    assert f"Tensorboard object default/{made['metadata']['name']}" in said
    assert len(made["metadata"]["name"]) + len("http-") <= 63
    assert board.run() == said
    assert len(board.objects()) == 1


def test_the_object_belongs_to_the_workflow_of_the_run(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.claim("ReadWriteMany")
    workflow = {"metadata": {"name": "w", "namespace": "default"}, "spec": {}}
    owner = board.server.call(board.server.api.create, WORKFLOW, workflow)
    reference = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "name": "w",
        "uid": owner["metadata"]["uid"],
    }
    pod = {
        "metadata": {
            "name": "step",
            "namespace": "default",
            "labels": {"pipeline/runid": "run-1"},
            "ownerReferences": [{**reference, "controller": True}],
        },
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    made = board.server.call(board.server.api.create, POD, pod)
    monkeypatch.setenv("KFP_POD_NAME", "step")
    monkeypatch.setenv("KFP_POD_UID", made["metadata"]["uid"])
    board.run()
    metadata = board.objects()[0]["metadata"]
    assert metadata["ownerReferences"] == [
        {**reference, "controller": False, "blockOwnerDeletion": False}
    ]
    assert metadata["labels"]["kfp-pytorch/run-id"] == "run-1"


def test_a_claim_that_one_node_holds_is_left_to_training(board: Board) -> None:
    board.claim("ReadWriteOnce")
    said = board.run()
    assert "held by one node only (ReadWriteOnce)" in said
    assert board.objects() == []
    assert board.shown["source"].startswith("volume://")


def test_a_bucket_needs_a_poddefault_for_the_object(board: Board) -> None:
    assert "PodDefault" in board.run(output_uri="s3://bucket")
    assert board.objects() == []
    board.run(output_uri="s3://bucket", labels={"s3-access": "true"})
    (made,) = board.objects()
    assert made["spec"]["logspath"] == "s3://bucket/run-1"
    assert made["metadata"]["labels"]["s3-access"] == "true"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(UNKNOWN, path=BOARDS, times=None), "does not have that kind"),
        (Fault(Forbidden(), verb="create", path=BOARDS, times=None), "Missing permission"),
        (Fault(Answer(400, "BadRequest", "webhook says no"), verb="create"), "webhook says no"),
        (Fault(Answer(503), times=None), "did not answer as it should"),
        (Fault(Refuse(30.0), times=None), "did not answer as it should"),
    ],
)
def test_nothing_that_the_cluster_does_fails_the_run(board: Board, fault: Fault, said: str) -> None:
    board.claim("ReadWriteMany")
    board.server.faults.add(fault)
    assert said in board.run()
    assert board.shown["source"] == "volume://logs/logs/run-1"


@pytest.mark.parametrize("then", ["reset", "timeout"])
def test_a_create_whose_answer_was_lost_has_made_the_object(board: Board, then: str) -> None:
    board.claim("ReadWriteMany")
    board.server.faults.add(Fault(LostAnswer(then), verb="create", path=BOARDS))
    assert "it opens from the dashboard" in board.run()
    assert len(board.objects()) == 1


def test_no_cluster_at_all_is_said_and_fails_nothing(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "No Tensorboard object" in board.run()


def test_an_object_of_somebody_else_is_left_alone(board: Board) -> None:
    board.claim("ReadWriteMany")
    board.run()
    (made,) = board.objects()
    name = made["metadata"]["name"]

    def disown(obj: dict[str, Any]) -> None:
        obj["metadata"]["labels"] = {}

    board.server.call(board.server.api.mutate, TENSORBOARD, "default", name, disown)
    assert f"default/{name} belongs to another step" in board.run()


@pytest.mark.parametrize(
    "inputs",
    [
        {"output_uri": "http://x"},
        {"output_uri": "/data"},
        {"key": "../x"},
        {"output_secret": "A B"},
        {"labels": {"a b": "c"}},
        {"output_uri": "pvc://claim/ x"},
    ],
)
def test_bad_input_is_said_before_anything_is_made(board: Board, inputs: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        board.run(**inputs)
    assert not Path(board.artifact.path).exists()
    assert board.objects() == []


def commands(board: Board) -> list[str]:
    text = Path(board.guide.path).read_text()
    return [
        line for block in text.split("```sh\n")[1:] for line in block.split("\n```")[0].split("\n")
    ]


def test_a_person_is_told_how_the_view_opens_with_commands_that_mount_the_claim(
    board: Board,
) -> None:
    board.run()
    run, wait, forward, delete = commands(board)
    words = shlex.split(run)
    assert words[:5] == ["kubectl", "run", "tensorboard", "-n", "default"]
    (overrides,) = [word.removeprefix("--overrides=") for word in words if "--overrides" in word]
    spec = json.loads(overrides)["spec"]
    (container,) = spec["containers"]
    assert container["command"][:3] == [
        "tensorboard",
        "--logdir",
        f"{OUTPUT_MOUNT}/logs/run-1",
    ]
    assert container["volumeMounts"][0]["name"] == spec["volumes"][0]["name"]
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "kfp-pytorch"}
    assert "pod/tensorboard 6006" in forward
    assert "wait -n default" in wait
    assert "delete -n default pod tensorboard" in delete


def test_the_logs_of_a_bucket_are_read_from_a_persons_own_machine_too(board: Board) -> None:
    board.run(output_uri="s3://bucket/runs", output_secret="keys")
    words = shlex.split(commands(board)[0])
    (overrides,) = [word.removeprefix("--overrides=") for word in words if "--overrides" in word]
    (container,) = json.loads(overrides)["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert commands(board)[-1] == "tensorboard --logdir s3://bucket/runs/run-1"


def test_single_user_kfp_is_named_as_what_cannot_open_its_own_tab(board: Board) -> None:
    assert "on multi-user KFP it opens in the Visualization tab of the artifact" in board.run()
    assert "Single-user KFP cannot open it" in Path(board.guide.path).read_text()


@pytest.mark.parametrize(
    "restart",
    [
        pytest.param(Restart(refused_s=0.3, forbidden_s=2.5), id="3 s"),
        pytest.param(Restart(0.5, 12.0, 7.5, 5.0), id="25 s", marks=pytest.mark.slow),
    ],
)
def test_a_restart_of_the_server_does_not_cost_the_object(
    api_server: ThreadedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: Restart
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.delenv("KFP_POD_NAME", raising=False)
    board = Board(api_server, tmp_path)
    board.claim("ReadWriteMany")
    api_server.restart(restart)
    board.run()
    assert len(board.objects()) == 1
