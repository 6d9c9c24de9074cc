"""`kfp-pytorch run` and `local`: what they refuse, how they end, and that they leave nothing."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kfp_pytorch.cli import clusters, session
from kfp_pytorch.launcher.constants import INFERENCE_SERVICE
from kfp_pytorch.local import client, lifecycle, step
from kfp_pytorch.local.kfp_runner import Run

COMMAND = [sys.executable, "-m", "kfp_pytorch.cli"]

PIPELINES = """
from kfp import dsl
from kfp_pytorch.components import pytorch_job

component = dsl.component(base_image="python", install_kfp_package=False)


@component
def hello(name: str) -> str:
    return f"hello {name}"


@component
def show(text: str) -> str:
    return text


@component
def once(marker: str, result: dsl.Output[dsl.Artifact]) -> str:
    import pathlib

    if not pathlib.Path(marker).exists():
        pathlib.Path(marker).touch()
        raise RuntimeError("the first time fails")
    return result.uri


@component
def who() -> dict:
    import os

    from kubernetes import client, config

    config.load_kube_config()
    api = client.CoreV1Api()
    namespace = config.list_kube_config_contexts()[1]["context"]["namespace"]
    pod = api.read_namespaced_pod(os.environ["KFP_POD_NAME"], namespace)
    owner = pod.metadata.owner_references[0]
    flow = client.CustomObjectsApi().get_namespaced_custom_object(
        "argoproj.io", "v1alpha1", namespace, "workflows", owner.name
    )
    return {
        "same uid": pod.metadata.uid == os.environ["KFP_POD_UID"],
        "phase": pod.status.phase,
        "run": pod.metadata.labels["pipeline/runid"],
        "owner": owner.kind,
        "workflow": flow["metadata"]["uid"] == owner.uid,
    }


@dsl.pipeline(name="asking")
def asking() -> dict:
    return who().output


@dsl.pipeline(name="greeting")
def greeting(name: str = "you", nodes: int = 1):
    hello(name=name)


@dsl.pipeline(name="telling")
def telling(text: str = "😀 é"):
    show(text=text)
    show(text="🎉 \\x7f \\u2028 \\\\")


@dsl.pipeline(name="trying")
def trying(marker: str):
    once(marker=marker)


@dsl.pipeline(name="sleeping")
def sleeping(nodes: int = 2):
    pytorch_job(
        image="python:3.12-slim",
        command=["python", "-c", "import time; print('asleep', flush=True); time.sleep(300)"],
        num_nodes=nodes,
    )
"""


@pytest.fixture
def root(tmp_path):
    """The folder of a cluster of this test; none of its processes may outlive the test."""
    yield tmp_path / "root"
    lifecycle.stop(tmp_path / "root")
    assert left_of(tmp_path) == []


@pytest.fixture
def pipelines(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PIPELINES)
    return path


def start(*arguments, root):
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments), "--root", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def invoke(*arguments, root):
    with start(*arguments, root=root) as process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def left_of(folder):
    """The command lines of processes that have this folder in theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsuch", "--local"], "There is no pipeline 'nonsuch'"),
        (["train_and_serve", "--local", "-p", "epoch=3"], "has no parameter 'epoch'"),
        (["train_and_serve", "--local", "-p", "epochs=many"], "epochs is an integer"),
        (["train_and_serve", "--local", "-p", "num_nodes=0"], "num_nodes is 0"),
        (["train_and_serve", "--local", "-p", "output_uri=ftp://x"], "ftp://x"),
        (["train_and_serve", "--local", "-p", "min_accuracy"], "name=value"),
        (["train_and_serve", "--local", "-p", 'dataset=a"b'], "quotation mark"),
        (["train_and_serve", "--local", "--resume"], "no run of train-and-serve to resume"),
        (["train_and_serve"], "--local for this machine"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(cli, root, arguments, message):
    result = cli("run", *arguments, "--root", root, "--json")
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert not root.exists()


def test_json_is_the_last_line_of_stdout_even_for_bad_input(cli, root):
    result = cli("run", "nonsuch", "--local", "--root", root, "--json")
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["status"] == "failed"
    assert "nonsuch" in summary["error"]
    expected = {"status", "pipeline", "steps", "metrics", "model", "endpoint", "artifacts", "error"}
    assert expected <= set(summary)


def test_a_run_brings_its_own_cluster_and_takes_it_away(pipelines, root):
    ran = invoke("run", f"{pipelines}:greeting", "--local", "-p", "name=it's ✨", root=root)
    assert ran.returncode == 0, ran.stderr
    assert "hello: succeeded" in ran.stdout
    assert "greeting succeeded in" in ran.stdout
    assert lifecycle.status(root) is None
    assert left_of(root) == []


def test_every_character_of_a_default_and_a_constant_reaches_the_step(pipelines, root):
    ran = invoke("run", f"{pipelines}:telling", "--local", "--json", root=root)
    assert ran.returncode == 0, ran.stderr
    folder = root / "runs" / json.loads(ran.stdout)["run"]
    written = [json.loads(path.read_text()) for path in folder.glob("show*/executor_output.json")]
    texts = {each["parameterValues"]["Output"] for each in written}
    assert texts == {"😀 é", "🎉 \x7f \u2028 \\"}


def test_the_home_is_for_its_owner_alone(pipelines, root):
    invoke("run", f"{pipelines}:greeting", "--local", root=root)
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("command", [["local", "up"], ["run", "train_and_serve", "--local"]])
def test_a_home_that_cannot_be_written_is_named_with_the_way_out(
    cli, tmp_path, monkeypatch, command
):
    file = tmp_path / "file"
    file.touch()
    for home in (file, file / "below", Path("/proc/nope")):
        monkeypatch.setenv(lifecycle.HOME_ENV, str(home))
        result = cli(*command)
        assert result.exit_code == 1
        assert f"Cannot write {home}: " in result.output
        assert "set KFP_PYTORCH_HOME or --root to another folder" in result.output
        assert "Errno" not in result.output


def test_a_compiled_package_runs_as_its_source_does(pipelines, root, tmp_path, cli):
    cli("compile", f"{pipelines}:greeting", "--output", tmp_path / "a.yaml")
    ran = invoke("run", tmp_path / "a.yaml", "--local", "--json", root=root)
    assert json.loads(ran.stdout)["status"] == "succeeded"


def test_a_step_is_a_pod_of_the_runs_workflow(pipelines, root):
    ran = invoke("run", f"{pipelines}:asking", "--local", "--json", root=root)
    assert ran.returncode == 0, ran.stderr
    folder = root / "runs" / json.loads(ran.stdout)["run"]
    written = json.loads((folder / "who" / "executor_output.json").read_text())
    run = json.loads((folder / "run.json").read_text())
    assert written["parameterValues"]["Output"] == {
        "same uid": True,
        "phase": "Running",
        "run": run["id"],
        "owner": "Workflow",
        "workflow": True,
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_in_order_and_the_next_run_works(pipelines, root, number):
    process = start("run", f"{pipelines}:sleeping", "--local", "--json", root=root)
    wait_for(process, "asleep")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert left_of(root) == []
    summary = json.loads(stdout)
    assert summary["status"] == "terminated"
    assert [s["status"] for s in summary["steps"]] == ["terminated"]
    assert "--resume" in stderr
    again = invoke("run", f"{pipelines}:greeting", "--local", root=root)
    assert again.returncode == 0, again.stderr


def test_kill_9_leaves_no_process_and_the_next_run_works(pipelines, root):
    process = start("run", f"{pipelines}:sleeping", "--local", "--json", root=root)
    wait_for(process, "asleep")
    process.kill()
    process.communicate()
    until(lambda: left_of(root) == [])
    again = invoke("run", f"{pipelines}:greeting", "--local", root=root)
    assert again.returncode == 0, again.stderr


def wait_for(process, text):
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"it ended without {text!r}")


def test_resume_keeps_the_runs_identity_and_its_arguments(pipelines, root, tmp_path):
    what = f"{pipelines}:trying"
    first = invoke(
        *("run", what, "--local", "--json", "-p", f"marker={tmp_path}/marker"), root=root
    )
    assert first.returncode == 1
    assert "RuntimeError: the first time fails" in json.loads(first.stdout)["error"]
    second = invoke("run", what, "--local", "--json", "--resume", root=root)
    assert second.returncode == 0, second.stderr
    run = json.loads(second.stdout)["run"]
    assert run == json.loads(first.stdout)["run"]
    artifacts = json.loads(second.stdout)["artifacts"]
    assert artifacts == {"result": f"{root}/runs/{run}/once/result"}
    third = invoke("run", what, "--local", "--resume", root=root)
    assert third.returncode == 1
    assert "succeeded. Start another without --resume" in third.stderr


def test_two_runs_do_not_share_a_cluster_that_ends_with_one_of_them(pipelines, root):
    process = start("run", f"{pipelines}:sleeping", "--local", "--json", root=root)
    wait_for(process, "asleep")
    second = invoke("run", f"{pipelines}:greeting", "--local", root=root)
    process.terminate()
    process.communicate()
    assert second.returncode == 1
    assert "Another run has the cluster" in second.stderr
    assert "kfp-pytorch local up" in second.stderr


def test_of_two_runs_at_the_same_instant_one_is_told_of_the_other(pipelines, root):
    both = [start("run", f"{pipelines}:greeting", "--local", root=root) for _ in range(2)]
    told = sorted((each.wait(), each.communicate()[1]) for each in both)
    assert [code for code, _ in told] == [0, 1]
    assert "Another run has the cluster" in told[1][1]


def test_definitions_of_a_folder_without_any_are_refused(root, tmp_path):
    (tmp_path / "crds").mkdir()
    up = invoke("local", "up", "--crds", tmp_path / "crds", root=root)
    assert up.returncode == 1
    assert f"no CustomResourceDefinition: {tmp_path}/crds holds no file *.json" in up.stderr


def test_up_status_and_down_tell_where_the_cluster_is(root):
    assert invoke("local", "status", root=root).returncode == 1
    up = invoke("local", "up", root=root)
    assert up.returncode == 0, up.stderr
    assert f"export KUBECONFIG={root}/kubeconfig" in up.stdout
    assert invoke("local", "status", root=root).stdout == up.stdout
    again = invoke("local", "up", root=root)
    assert again.returncode == 1
    assert "kfp-pytorch local down" in again.stderr
    assert invoke("local", "down", root=root).stdout == "The cluster is down.\n"
    assert "No cluster was up" in invoke("local", "down", root=root).stdout


def test_a_port_in_use_is_named_and_nothing_is_left(root):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = invoke("local", "up", "--port", port, root=root)
    assert up.returncode == 1
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use" in up.stderr
    assert "Errno" not in up.stderr
    assert lifecycle.status(root) is None


@pytest.mark.parametrize("keep", [False, True])
def test_in_a_cluster_that_stays_only_the_runs_own_endpoint_goes_unless_it_is_kept(root, keep):
    handle = lifecycle.start_detached(root)
    target = session.Target(handle.kubeconfig, root, "default", handle.url, handle.token)
    flow = session._workflow(Run("w", "a-run", "p"), target)["metadata"]["uid"]
    setting = step.Setting("a-run", "", "default", "w", flow, handle.url, handle.token)

    def deploy(name):
        step.PodObject(setting, "kserve-deploy").create(
            {step.DEPLOYS_ANNOTATION: f"{clusters.NAMESPACE}/{name}"}
        )
        if name != "never-made":
            create(name)

    url = client.path(INFERENCE_SERVICE, clusters.NAMESPACE)

    def create(name):
        body = {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.kind,
            "metadata": {"name": name},
            "spec": {"predictor": {"model": {"modelFormat": {"name": "nonsuch"}}}},
        }
        client.request(handle.url, "POST", url, body, token=handle.token)

    def names():
        listed = client.request(handle.url, "GET", url, token=handle.token)
        return {item["metadata"]["name"] for item in listed["items"]}

    create("before")
    with clusters.cluster(root, None, "a-run", keep=keep) as target:
        assert target.server == handle.url
        deploy("within")
        deploy("never-made")
        create("by-somebody-else")
    others = {"before", "by-somebody-else"}
    assert names() == (others | {"within"} if keep else others)
    assert lifecycle.status(root) is not None


def test_a_kept_cluster_stays_after_the_run(pipelines, root):
    ran = invoke("run", f"{pipelines}:greeting", "--local", "--keep", root=root)
    assert ran.returncode == 0, ran.stderr
    assert "kfp-pytorch local down" in ran.stdout
    assert lifecycle.status(root) is not None
