"""Without Docker and a cluster: environment of a task, optional artifacts, exit handlers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from harness.ports import free_port
from harness.wheels import write_wheel

from kfp_pytorch.cli import main

pytestmark = pytest.mark.local_cluster

FILE = Path(__file__).with_name("local_pipelines.py")


def run_local(root, pipeline, home, *options, variables=None):
    command = ["run", f"{FILE}:{pipeline}", "--local", "--json", "--root", str(root), *options]
    # An empty PATH but for what the steps' own commands need: there is no docker to be found.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), **(variables or {})}
    # In this process, which has imported KFP: that takes longer than many a run.
    ran = CliRunner().invoke(main, command, env=environment, catch_exceptions=False)
    return ran, json.loads(ran.stdout)


def test_a_failure_is_told_after_what_an_exit_handler_cleans_up(cluster, tmp_path):
    ran, told = run_local(cluster.root, "cleaning", tmp_path, "-p", f"marker={tmp_path}/cleaned")
    assert ran.exit_code == 1
    assert "ValueError: here True is no good" in told["error"]
    assert (tmp_path / "cleaned").exists()
    statuses = {step["name"]: step["status"] for step in told["steps"]}
    assert statuses == {"look": "succeeded", "fail": "failed", "clean": "succeeded"}


def test_a_container_component_is_refused_before_any_step_runs(tmp_path):
    root = tmp_path / "root"
    ran, told = run_local(root, "echoing", tmp_path, "-p", f"marker={tmp_path}/done")
    assert ran.exit_code == 1
    assert "echoing: step echo cannot run on this machine" in told["error"]
    assert "lightweight Python component" in told["error"]
    assert not (tmp_path / "done").exists()
    assert not root.exists()


def test_settings_of_pods_that_have_no_effect_here_are_told_before_the_run(cluster, tmp_path):
    ran, told = run_local(cluster.root, "secretive", tmp_path)
    assert told["status"] == "succeeded"
    warned = [line for line in ran.stderr.splitlines() if line.startswith("Warning")]
    assert len(warned) == 1
    assert warned[0].startswith("Warning: step look: what kfp.kubernetes sets")
    assert "this machine: activeDeadlineSeconds. Where it is for training pods" in warned[0]
    assert ran.stderr.index("Warning: step look") < ran.stderr.index("look: started")


HIDDEN = "a-hidden-value"


@pytest.fixture
def secrets(tmp_path):
    """The options that give a run a Secret, a ConfigMap and a claim."""
    folder = tmp_path / "secrets"
    (folder / "token").mkdir(parents=True)
    (folder / "token" / "key").write_text(HIDDEN)
    (folder / "colours.yaml").write_text(
        "kind: ConfigMap\nmetadata: {name: colours}\ndata: {c: red}\n"
    )
    (tmp_path / "claim" / "x").mkdir(parents=True)
    return ["--secrets", str(folder), "--claim", f"mine={tmp_path}/claim"]


def exposed(text, folder):
    """The files with this text that another user could read."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes() and path.stat().st_mode & 0o77
    ]


def test_secrets_maps_and_claims_that_are_given_reach_a_step_and_nothing_else(
    cluster, tmp_path, secrets
):
    digest = hashlib.sha256(f"{HIDDEN} {HIDDEN} red".encode()).hexdigest()
    ran, told = run_local(cluster.root, "given", tmp_path, "-p", f"digest={digest}", *secrets)
    assert told["status"] == "succeeded", ran.stdout + ran.stderr
    # Of the user alone, like everything below the root.
    assert int((tmp_path / "claim" / "x" / "written").read_text()) & 0o77 == 0
    assert HIDDEN not in ran.stdout + ran.stderr
    assert exposed(HIDDEN, cluster.root) == []
    # Its arguments have every path that is mounted, and get the folders here instead.
    assert "finds nothing of what is mounted" not in ran.stderr
    (said,) = (cluster.root / "runs").glob("given-*/read/executor_output.json")
    assert not json.loads(said.read_text())["parameterValues"]["Output"].startswith("/secrets")


def test_what_a_step_uses_and_nobody_gave_is_named_before_the_run(tmp_path):
    root = tmp_path / "root"
    options = ("-p", "digest=x", "-p", "secret=other")
    ran, told = run_local(root, "given", tmp_path, *options)
    assert ran.exit_code == 1
    for words in (
        "task read: there is no Secret 'other'",
        "task read: there is no Secret 'token'",
        "task read: there is no ConfigMap 'colours'",
        "task read: there is no PersistentVolumeClaim 'mine'",
        "--secrets FILE",
        "--claim mine=FOLDER",
    ):
        assert words in told["error"]
    assert not (root / "runs").exists()


def test_secrets_and_claims_of_a_task_reach_its_training_pods(cluster, tmp_path, secrets):
    ran, told = run_local(cluster.root, "job_given", tmp_path, *secrets)
    assert told["status"] == "succeeded", ran.stdout + ran.stderr
    written = (tmp_path / "claim" / "written").read_text()
    assert written == hashlib.sha256(HIDDEN.encode()).hexdigest()
    assert HIDDEN not in ran.stdout + ran.stderr
    assert exposed(HIDDEN, cluster.root) == []


def test_more_gpus_than_there_are_fail_before_any_step_with_how_to_run_without(cluster, tmp_path):
    ran, told = run_local(cluster.root, "large", tmp_path)
    assert ran.exit_code == 1
    assert "large: task pytorch-job: its pods ask for 64 nvidia.com/gpu" in told["error"]
    assert "`kfp-pytorch run … --local --cpu`" in told["error"]
    assert "clean" not in ran.stderr


def test_more_gpus_than_there_are_that_only_the_run_knows_fail_their_step_at_once(
    cluster, tmp_path
):
    _, told = run_local(cluster.root, "late", tmp_path)
    assert "its pods ask for 64 nvidia.com/gpu, and this machine has " in told["error"]
    assert "`kfp-pytorch run … --local --cpu`" in told["error"]
    assert told["steps"][1]["seconds"] < 10


def test_cpu_leaves_out_gpus_wherever_they_are_asked_for_and_says_so(cluster, tmp_path):
    containers = [{"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": 32}}}]
    patch = {"spec": {"containers": containers, "nodeSelector": {"gpu": "a100"}}}
    options = ("--cpu", "-p", f"patch={json.dumps(patch)}")
    ran, told = run_local(cluster.root, "late", tmp_path, *options)
    assert told["status"] == "succeeded", ran.stdout + ran.stderr
    assert ran.stderr.startswith(
        "--cpu: task pytorch-job trains on the CPU, without its 32 GPUs a node: 1 × 1 processes "
    )
    assert "rank 0: default_pytorch-job-" in ran.stderr


def test_packages_of_a_step_are_not_installed_into_this_python(cluster, tmp_path):
    write_wheel(tmp_path)
    options = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    ran, told = run_local(cluster.root, "installing", tmp_path, variables=options)
    assert told["status"] == "succeeded", ran.stdout + ran.stderr
    assert "Installing this step's packages into " in ran.stderr
    assert importlib.util.find_spec("try_it") is None


# A model server of somebody else's.
SERVER = """
import http.server, json, os, pathlib, sys
folder, name, *port = sys.argv[1:]
assert os.environ["TOKEN"] == os.environ["KNOWN"]
words = pathlib.Path(folder, "weights").read_text()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.headers["authorization"] == "Bearer " + os.environ["TOKEN"]
        assert self.path == f"/v1/models/{name}:predict"
        given = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.reply({"predictions": [{"class": each + int(words)} for each in given["instances"]]})
    def do_GET(self):
        self.reply({"ready": True})
    def reply(self, what):
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int((port or [PORT])[-1])), Handler).serve_forever()
"""


def runtime(folder, **container):
    """A file with a runtime for models of the format `mine`."""
    made = {
        "kind": "ClusterServingRuntime",
        "metadata": {"name": "mine"},
        "spec": {
            "supportedModelFormats": [{"name": "mine", "autoSelect": True}],
            "containers": [{"name": "kserve-container", "image": "somewhere/server", **container}],
        },
    }
    (folder / "runtime.yaml").write_text(yaml.safe_dump(made))
    return ["--runtimes", str(folder / "runtime.yaml")]


@pytest.mark.parametrize("told", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_model_server_of_somebody_elses_serves_whether_or_not_it_is_told_its_port(
    cluster, tmp_path, secrets, told
):
    port = 8080 if told else free_port()
    (tmp_path / "server.py").write_text(SERVER.replace("PORT", str(port)))
    (tmp_path / "claim" / "x" / "weights").write_text("1")
    script = f"exec python '{tmp_path}/server.py' /mnt/models {{{{.Name}}}}"
    options = runtime(
        tmp_path,
        command=["sh", "-ec"],
        args=[f"{script} --port {port}" if told else script],
        env=[{"name": "KNOWN", "value": HIDDEN}],
        ports=[{"containerPort": port}],
        readinessProbe={"tcpSocket": {"port": port}, "periodSeconds": 1},
    )
    ran, told = run_local(cluster.root, "serving_mine", tmp_path, *secrets, *options)
    assert told["status"] == "succeeded", ran.stdout + ran.stderr


@pytest.mark.slow
def test_a_container_of_ones_own_serves_a_model_of_a_plain_uri(cluster, tmp_path, secrets):
    (tmp_path / "server.py").write_text(SERVER.replace("PORT", "8080"))
    (tmp_path / "claim" / "x" / "weights").write_text("1")
    script = f"exec python '{tmp_path}/server.py' /mnt/models mine --port 8080"
    options = ("-p", f"script={script}", *secrets)
    ran, told = run_local(cluster.root, "serving_a_container", tmp_path, *options)
    assert told["status"] == "succeeded", ran.stdout + ran.stderr


def test_what_a_model_server_needs_and_is_not_there_is_named_before_the_run(cluster, tmp_path):
    ran, told = run_local(cluster.root, "serving_elsewhere", tmp_path)
    assert ran.exit_code == 1
    for words in (
        "task kserve-deploy: there is no Secret 'nonsuch'. Give it: ",
        "task kserve-deploy-2: there is no Secret 'storage-config'",
        "task kserve-deploy: there is no PersistentVolumeClaim 'nowhere'",
        "task kserve-deploy: maximum usage per Pod: the pod asks for 64 nvidia.com/gpu",
    ):
        assert words in told["error"]
    assert "importer" not in ran.stderr


def test_servers_that_run_on_a_cluster_only_are_named_before_the_run(cluster, tmp_path):
    ran, told = run_local(cluster.root, "serving_on_a_cluster", tmp_path)
    assert ran.exit_code == 1
    for words in (
        "task kserve-deploy: No runtime found to support specified framework/version ('triton')",
        "Triton, vLLM and HuggingFace's server come as images, which run on a cluster only.",
        "task kserve-deploy-2: the predictor's container has no command, and an image (i:1)",
        "task kserve-deploy-3: the predictor's container runs nonsuch-server, which is not on",
        "task kserve-deploy-4: its model is at hf://a/b, which is not read on this machine",
        "task kserve-deploy-5: its transformer is a second server",
    ):
        assert words in told["error"]


def test_a_model_server_that_cannot_run_here_is_named_at_once(cluster, tmp_path, secrets):
    options = runtime(tmp_path, args=["--port=8080"])
    _, told = run_local(cluster.root, "serving_mine", tmp_path, *secrets, *options)
    assert "mine has no command, and an image (somewhere/server)" in told["error"]


@pytest.mark.slow
def test_a_model_is_served_and_asked_over_grpc(cluster, tmp_path):
    ran, told = run_local(cluster.root, "over_grpc", tmp_path)
    assert told["status"] == "succeeded", ran.stdout + ran.stderr
