"""`kfp-pytorch doctor`: its lines, its JSON, its exit code, and what it costs to start."""

import base64
import json
import resource
import subprocess
import sys

import pytest
import yaml
from harness.api_server import start_in_thread
from harness.objects import ready

from kfp_pytorch.components import bundle
from kfp_pytorch.launcher.constants import CONFIG_MAP, DEPLOYMENT


@pytest.fixture
def server(tmp_path, monkeypatch):
    # What the command sets is taken back.
    monkeypatch.setenv("KUBECONFIG", "")
    (tmp_path / "server").mkdir()
    started = start_in_thread(tmp_path / "server", token="a-secret-word")
    ready.fill(started)
    yield started
    started.stop()


@pytest.fixture
def doctor(cli, server):
    def run(*arguments):
        return cli("doctor", "--kubeconfig", server.kubeconfig, *arguments)

    return run


def install(server):
    content = yaml.load(bundle.manifest_path().read_text(), yaml.CSafeLoader)
    ready.make(server, CONFIG_MAP, {**content, "metadata": ready.named(bundle.reference().name)})


def test_a_cluster_that_is_ready_is_told_line_by_line(doctor, server):
    install(server)
    result = doctor("--num-nodes", "2", "--gpus-per-node", "4")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok       API server: http://127.0.0.1:")
    assert "ok       nodes: 2 pods with 4 of nvidia.com/gpu fit now." in lines
    assert lines[-1] == f"{len(lines) - 1} ok"
    assert "a-secret-word" not in result.output


def test_an_error_is_told_with_its_mend_and_the_mend_makes_it_green(doctor, server, cli):
    result = doctor()
    assert result.exit_code == 1
    name = bundle.reference().name
    assert (
        f"error    launcher: There is no ConfigMap default/{name}. Other versions are there: "
        f"{ready.LAUNCHER.name}.\n         → kfp-pytorch launcher install -n default\n"
    ) in result.stdout
    mended = cli("launcher", "install", "-n", "default", "--kubeconfig", server.kubeconfig)
    assert mended.exit_code == 0
    assert doctor().exit_code == 0


def test_a_launcher_of_another_version_does_not_count(doctor, server):
    data = {bundle.KEY: base64.b64encode(b"other").decode()}
    metadata = ready.named(bundle.reference().name)
    ready.make(server, CONFIG_MAP, {"metadata": metadata, "binaryData": data})
    result = doctor()
    assert (result.exit_code, "has other content than it should" in result.stdout) == (1, True)
    # A package in another form needs none.
    assert doctor("--launcher", "image").exit_code == 0


def test_the_json_has_each_finding_and_a_warning_its_own_exit_code(doctor, server):
    ready.drop(server, DEPLOYMENT, "katib-controller", "kubeflow")
    result = doctor("--launcher", "package", "--json")
    assert result.exit_code == 3
    told = json.loads(result.stdout)
    assert told["worst"] == "warning"
    [found] = [each for each in told["findings"] if each["level"] != "ok"]
    assert (found["about"], bool(found["what"]), bool(found["mend"])) == ("Katib", True, True)


def test_the_account_and_the_components_are_those_that_are_asked_for(doctor):
    result = doctor("--launcher", "image", "--service-account", "default-editor")
    assert result.exit_code == 1
    assert "system:serviceaccount:default:default-editor may not" in result.stdout
    result = doctor("--launcher", "image", "--component", "metric_gate")
    assert result.exit_code == 0
    assert "storage" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num-nodes", "0"], "num_nodes is 0; it must be from 1 to 10000."),
        (["--component", "train"], "components has 'train'; the components are pytorch_job, "),
        (["--tolerations", "[{"], "tolerations is '[{', which is no JSON"),
        (["--output-uri", "/data"], "output_uri is '/data'; it must begin with pvc://CLAIM"),
        (["--output-endpoint", "s3.local"], "output_endpoint is 's3.local'; write http://"),
        (["-n", "a b"], "namespace is 'a b'"),
        (["--service-account", "a b"], "--service-account is 'a b'"),
        (["--service-account", ""], "--service-account is empty"),
    ],
)
def test_what_cannot_work_is_refused_before_the_cluster_is_asked(doctor, server, arguments, words):
    result = doctor(*arguments)
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert not server.requests


def test_without_a_cluster_it_says_how_to_name_one(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = cli("doctor")
    assert result.exit_code == 1
    assert "Set KUBECONFIG" in result.output


def test_it_starts_fast_and_needs_no_kfp(server):
    command = [sys.executable, "-m", "kfp_pytorch.cli", "doctor"]
    # The processor's time: other processes of this machine do not count.
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.3
    command[1:1] = ["-X", "importtime"]
    options = ["--kubeconfig", str(server.kubeconfig), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kfp_pytorch.launcher.readiness.examine" in imported
    assert not {"kfp", "kubernetes", "torch"} & imported
