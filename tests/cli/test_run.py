"""`kfp-pytorch run`: what it refuses, what a step gets, and whose the cluster is."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import click
import pytest
from harness.command import COMMAND, invoke, left_of, start, until, wait_for

from kfp_pytorch.cli.runs import clusters, session
from kfp_pytorch.launcher.constants import INFERENCE_SERVICE
from kfp_pytorch.local import client, lifecycle
from kfp_pytorch.local.kfp import step
from kfp_pytorch.local.kfp.runner import Run

KUBECTL = shutil.which("kubectl")
PIPELINES = Path(__file__).with_name("small_pipelines.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run of a compiled package with a cluster of its own: what it said, and its folder."""
    folder = tmp_path_factory.mktemp("told")
    package, root = folder / "a.yaml", folder / "root"
    subprocess.run([*COMMAND, "compile", f"{PIPELINES}:telling", "--output", package], check=True)
    ran = invoke("run", package, "--local", "-p", "name=it's ✨", root=root)
    assert ran.returncode == 0, ran.stderr
    (run,) = (root / "runs").iterdir()
    return ran.stdout, run


def output_of(run, step):
    """What a function returned, each of those that bear this name."""
    written = [json.loads(path.read_text()) for path in run.glob(f"{step}*/executor_output.json")]
    return [each["parameterValues"]["Output"] for each in written]


def test_the_parameters_of_a_pipeline_are_listed_with_type_default_and_description(cli):
    result = cli("params", "train_and_serve")
    assert result.exit_code == 0
    assert '  dataset: string = "digits"  ' in result.output
    assert "There is no pipeline 'nonsuch'" in cli("params", "nonsuch").output


def test_each_command_fits_its_line_in_the_list_of_commands(cli):
    _, _, commands = cli("--help").output.partition("Commands:\n")
    assert commands.count("\n") == 5
    assert "..." not in commands


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsuch", "--local"], "There is no pipeline 'nonsuch'"),
        (["train_and_serve", "--local", "-p", "epoch=3"], "has no parameter 'epoch'"),
        (["train_and_serve", "--local", "-p", "epochs=many"], "epochs is an integer"),
        (["train_and_serve", "--local", "-p", "num_nodes=0"], "num_nodes is 0"),
        (["train_and_serve", "--local", "-p", "output_uri=ftp://x"], "ftp://x"),
        (["train_and_serve", "--local", "-p", "min_accuracy"], "name=value"),
        (["train_and_serve", "--local", "-p", "min_accuracy=97"], "minimum is 97, but accuracy is"),
        (["train_and_serve", "--local", "-p", "min_accuracy=-0.1"], "from 0 to 1; 97 % is 0.97"),
        (["train_and_serve", "--local", "-p", "min_accuracy=nan"], "min_accuracy must be finite"),
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


def test_json_tells_of_a_command_that_does_not_say_where_to_run(cli):
    result = cli("run", "train_and_serve", "--json")
    assert result.exit_code == 2
    (line,) = result.stdout.splitlines()
    assert json.loads(line)["error"].startswith("Say where: --local")


def test_json_is_the_last_line_of_stdout_even_for_bad_input(cli, root):
    result = cli("run", "nonsuch", "--local", "--root", root, "--json")
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["status"] == "failed"
    assert "nonsuch" in summary["error"]
    expected = {"status", "pipeline", "steps", "metrics", "model", "endpoint", "artifacts", "error"}
    assert expected <= set(summary)


def test_a_compiled_package_brings_its_own_cluster_and_takes_it_away(told):
    stdout, run = told
    assert "hello: succeeded" in stdout
    assert "telling succeeded in" in stdout
    assert output_of(run, "hello") == ["hello it's ✨"]
    root = run.parents[1]
    assert lifecycle.status(root) is None
    assert left_of(root) == []


def test_every_character_of_a_default_and_a_constant_reaches_the_step(told):
    assert set(output_of(told[1], "show")) == {"😀 é", "🎉 \x7f \u2028 \\"}


def test_the_home_is_for_its_owner_alone(told):
    assert told[1].parents[1].stat().st_mode & 0o777 == 0o700


def test_a_step_is_a_pod_of_the_runs_workflow(told):
    run = told[1]
    assert output_of(run, "who") == [
        {
            "same uid": True,
            "phase": "Running",
            "run": json.loads((run / "run.json").read_text())["id"],
            "owner": "Workflow",
            "workflow": True,
        }
    ]


def test_a_run_does_not_share_a_cluster_that_ends_with_another_run(cli, root):
    root.mkdir()
    with (root / clusters._OWNED_FILE).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = cli("run", f"{PIPELINES}:greeting", "--local", "--root", root)
    assert second.exit_code == 1
    assert "Another run has the cluster" in second.output
    assert "kfp-pytorch local up" in second.output


@pytest.mark.slow
def test_of_two_runs_at_the_same_instant_one_is_told_of_the_other(root):
    both = [start("run", f"{PIPELINES}:sleeping", "--local", "--json", root=root) for _ in range(2)]
    until(lambda: any(each.poll() is not None for each in both))
    other, one = sorted(both, key=lambda each: each.poll() is None)
    assert "Another run has the cluster" in other.communicate()[1]
    assert other.returncode == 1
    wait_for(one, "asleep")
    one.terminate()
    one.communicate()
    assert one.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("keep", [False, True])
def test_in_a_cluster_that_stays_only_the_runs_own_endpoint_goes_unless_it_is_kept(root, keep):
    handle = lifecycle.start_detached(root)
    target = session.Target(handle.kubeconfig, root, "default", handle.url, handle.token)
    flow = session._workflow(Run("w", "a-run", "p"), target)["metadata"]["uid"]
    setting = step.Setting("a-run", "", "default", "w", flow, handle.url, handle.token)

    def deploy(told, name):
        step.PodObject(setting, "kserve-deploy").create({step.DEPLOYS_ANNOTATION: told})
        if name:
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
        deploy("default/within", "within")
        # As a person writes it, and what the step makes of it.
        deploy("None/My_Digits v2", "my-digits-v2")
        deploy("default/never-made", "")
        deploy("default/…", "")
        create("by-somebody-else")
    others = {"before", "by-somebody-else"}
    assert names() == (others | {"within", "my-digits-v2"} if keep else others)
    assert lifecycle.status(root) is not None


def test_a_cluster_that_does_not_answer_is_named_with_the_way_out(root):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        target = session.Target(root / "kubeconfig", root, "default", server)
        with pytest.raises(click.ClickException) as caught:
            session._workflow(Run("w", "a-run", "p"), target)
        session._record(Run("w", "a-run", "p"), target, "Failed")
    assert f"The local cluster at {server} does not answer: " in caught.value.message
    assert "`kfp-pytorch local down`" in caught.value.message


def test_a_kept_cluster_stays_after_the_run(root):
    ran = invoke("run", f"{PIPELINES}:greeting", "--local", "--keep", root=root)
    assert ran.returncode == 0, ran.stderr
    assert "kfp-pytorch local down" in ran.stdout
    assert lifecycle.status(root) is not None
    if KUBECTL:
        command = [KUBECTL, "--kubeconfig", root / "kubeconfig", "get", "wf"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        head, (name, status, *_) = (line.split() for line in listed.splitlines())
        assert head[:2] == ["NAME", "STATUS"]
        assert (name, status) == (next((root / "runs").iterdir()).name, "Succeeded")
