"""The step `preflight`, with the account of the steps."""

import time
from pathlib import Path

import pytest
from harness.api_server import start_in_thread
from harness.objects import ready
from kfp import dsl

from kfp_pytorch.launcher.constants import CLAIM, NODE, RESOURCE_QUOTA
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.readiness import survey
from kfp_pytorch.launcher.runtime.runner import report_failure
from kfp_pytorch.launcher.steps import preflight
from kfp_pytorch.local.apiserver.registry import CLUSTER_ROLE, CLUSTER_ROLE_BINDING

TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


@pytest.fixture
def server(tmp_path, monkeypatch):
    (tmp_path / "server").mkdir()
    started = start_in_thread(tmp_path / "server")
    ready.fill(started)
    monkeypatch.setenv("KUBECONFIG", str(ready.step_kubeconfig(started, tmp_path)))
    yield started
    started.stop()


@pytest.fixture
def report(tmp_path):
    return dsl.Markdown(uri=str(tmp_path / "artifacts" / "report"))


def see_everything(server):
    (rules,) = [
        part["rules"]
        for part in ready.documents("preflight/role.yaml")
        if part["kind"] == "ClusterRole"
    ]
    ready.make(server, CLUSTER_ROLE, {"metadata": {"name": "reading"}, "rules": rules})
    ready.bind(server, CLUSTER_ROLE_BINDING, "reading")


def test_a_cluster_that_is_ready_lets_the_run_begin_and_the_report_has_every_line(
    server, report, capsys
):
    see_everything(server)
    summary = preflight.run(report, num_nodes=2, gpus_per_node=4)
    lines = Path(report.path).read_text().splitlines()
    assert summary == f"{len(lines) - 2} ok"
    assert lines[:2] == ["| | about | what | what mends it |", "| --- | --- | --- | --- |"]
    assert "| ok | nodes | 2 pods with 4 of nvidia.com/gpu fit now. |  |" in lines
    assert f"The cluster is ready: {summary}." in capsys.readouterr().out


def test_all_that_is_missing_is_in_one_message_within_seconds(
    server, report, monkeypatch, tmp_path, capsys
):
    see_everything(server)
    ready.change(server, NODE, ready.GPU_NODE, spec={"taints": [TAINT]})
    ready.drop(server, CLAIM, "kfp-pytorch", "default")
    hard = {"requests.nvidia.com/gpu": "4"}
    quota = {"metadata": ready.named("team"), "spec": {"hard": hard}}
    ready.make(server, RESOURCE_QUOTA, quota, {"hard": hard, "used": {}})
    began = time.monotonic()
    with pytest.raises(preflight.NotReady) as raised:
        preflight.run(report, gpus_per_node=8)
    assert time.monotonic() - began < 10
    message = raised.value.message
    assert message.startswith("The cluster is not ready for this run: ")
    for words in (
        "- error, nodes: The run needs 1 pod with 8 of nvidia.com/gpu",
        "  Set tolerations=[",
        "- error, quota: ResourceQuota default/team would refuse",
        "  kubectl patch resourcequota team",
        "- error, storage: There is no claim default/kfp-pytorch",
        "  kubectl apply -n default -f manifests/pvc.yaml",
    ):
        assert words in message
    assert "| error | storage |" in Path(report.path).read_text()
    # What KFP shows at the node.
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setenv("KFP_PYTORCH_TERMINATION_LOG", str(log))
    report_failure("preflight", raised.value)
    assert log.read_text().startswith("preflight: the cluster is not ready: ")
    assert all(word in log.read_text() for word in ("nodes: ", "quota: ", "storage: "))
    assert "no claim default/kfp-pytorch" in capsys.readouterr().err


def test_what_the_account_may_not_read_stops_no_run(server, report, monkeypatch, capsys):
    monkeypatch.setattr(survey, "_ASK_AGAIN_AFTER", 0.0)
    summary = preflight.run(report, gpus_per_node=8)
    assert "2 warnings" in summary
    told = " ".join(capsys.readouterr().out.split())
    assert "warning: not checked: system:serviceaccount:default:pipeline-runner may not" in told


def test_a_denial_that_does_not_last_is_asked_again(server, report):
    # As of a server that starts: its first answer is no.
    seen = []
    look = survey.Survey._review

    def once_denied(self, *key):
        seen.append(key)
        return look(self, *key) if len(seen) > 1 else False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey.Survey, "_review", once_denied)
        patch.setattr(survey, "_ASK_AGAIN_AFTER", 0.0)
        preflight.run(report)
    assert seen[0] == seen[1]


def test_a_server_that_is_away_fails_the_step(server, report, monkeypatch):
    monkeypatch.setattr(preflight, "_POLICY", preflight.RetryPolicy(1.0, 1.0))
    server.stop()
    with pytest.raises(preflight.NotReady, match="API server"):
        preflight.run(report)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"components": ["train"]}, "components has 'train'; the components are pytorch_job"),
        ({"num_nodes": -1}, "num_nodes is -1; it must be from 1 to"),
        ({"output_uri": "/data"}, "output_uri is '/data'"),
        ({"output_endpoint": "minio:9000"}, "output_endpoint is 'minio:9000'; write http://"),
        ({"tolerations": [{"operator": "Equal"}]}, "tolerations[0] has no key"),
    ],
)
def test_an_input_that_cannot_work_is_named_before_anything_is_asked(server, report, inputs, words):
    with pytest.raises(InputError) as raised:
        preflight.run(report, **inputs)
    assert words in raised.value.message
    assert not server.requests
