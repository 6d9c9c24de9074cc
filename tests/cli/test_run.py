"""`kfp-pytorch run`: what it refuses, what a step gets, and whose the cluster is."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from harness.command import invoke, left_of, start, until

from kfp_pytorch.cli import main
from kfp_pytorch.cli.run import _as_json
from kfp_pytorch.cli.runs import clusters, run_folder, session
from kfp_pytorch.launcher.constants import INFERENCE_SERVICE
from kfp_pytorch.local import client, lifecycle
from kfp_pytorch.local.kfp import step
from kfp_pytorch.local.kfp.runner import Run

KUBECTL = shutil.which("kubectl")
PIPELINES = Path(__file__).with_name("small_pipelines.py")


@pytest.fixture(scope="module")
def told(cli, tmp_path_factory):
    """A run of a compiled package with a cluster of its own: what it said, and its folder."""
    folder = tmp_path_factory.mktemp("told")
    package, root = folder / "a.yaml", folder / "root"
    assert cli("compile", f"{PIPELINES}:telling", "--output", package).exit_code == 0
    ran = cli("run", package, "--local", "-p", "name=it's ✨", "--root", root)
    assert ran.exit_code == 0, ran.stderr
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
    assert commands.count("\n") == len(main.commands)
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


def test_a_resumed_run_has_its_options_again_but_for_those_that_are_given(cli, root, tmp_path):
    options = {"cpu": True, "secrets": ["/gone/a.yaml"], "claims": ["c=/gone/too"]}
    run_folder.write(root / "runs" / "r", Run("r", "id", "greeting", options=options), {})
    resume = ("run", f"{PIPELINES}:greeting", "--local", "--resume", "--root", root)
    ended = cli(*resume, "--claim", f"mine={tmp_path}")
    assert ended.output.startswith("Resuming the run r.\n")
    assert "options of the run: --cpu --secrets /gone/a.yaml\n" in ended.output
    assert "/gone/a.yaml is not there" in ended.output
    (tmp_path / "b.env").write_text("A=1")
    ended = cli(*resume, "--secrets", tmp_path / "b.env")
    assert "options of the run: --cpu --claim c=/gone/too\n" in ended.output
    assert "--claim is 'c=/gone/too'; it takes NAME=FOLDER" in ended.output


def test_json_has_no_endpoint_that_has_ended_with_the_runs_cluster(tmp_path):
    ended = {"endpoint": "http://127.0.0.1:1/m"}
    here = SimpleNamespace(root=tmp_path, kubeconfig=None)
    elsewhere = SimpleNamespace(root=tmp_path, kubeconfig=tmp_path / "kubeconfig")
    assert json.loads(_as_json(here, ended)) == {"endpoint": ""}
    assert json.loads(_as_json(elsewhere, ended)) == ended


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


@pytest.mark.parametrize("folders", ["aa", pytest.param("ab", marks=pytest.mark.slow)])
def test_two_runs_at_the_same_instant_both_end_on_one_cluster_or_on_two(
    cli, root, tmp_path, folders
):
    roots = [root.with_name(folder) for folder in folders]
    run = ("run", f"{PIPELINES}:meeting", "--local")
    one, other = (
        ("-p", f"mine={tmp_path}/{a}", "-p", f"other={tmp_path}/{b}") for a, b in ("12", "21")
    )
    process = start(*run, *one, root=roots[0])
    ended = cli(*run, *other, "--root", roots[1])
    _, stderr = process.communicate()
    assert (ended.exit_code, process.returncode) == (0, 0), ended.stderr + stderr
    assert [lifecycle.status(where) for where in roots] == [None, None]


# A run as far as its cluster goes.
USES_A_CLUSTER = """
import pathlib, sys
from kfp_pytorch.cli.run import _as_json
from kfp_pytorch.cli.runs import clusters
with clusters.cluster(pathlib.Path(sys.argv[1]), None, "r", keep=False) as target:
    print(target.server, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def killed_later(root):
    """Another run in a process of its own; gives the address of its cluster."""
    command = [sys.executable, "-c", USES_A_CLUSTER, root]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        yield process.stdout.readline().strip()
        process.kill()


def test_a_cluster_that_a_killed_run_started_ends_with_the_run_that_joined_it(root):
    with contextlib.ExitStack() as joined:
        with killed_later(root) as server:
            target = joined.enter_context(clusters.cluster(root, None, "r", keep=False))
            assert target.server == server
        assert target.request("GET", "/api/v1/namespaces")["items"]
    assert lifecycle.status(root) is None


def test_a_cluster_outlives_the_run_that_started_it_until_the_last_is_killed(root):
    with contextlib.ExitStack() as first:
        target = first.enter_context(clusters.cluster(root, None, "r", keep=False))
        with killed_later(root) as server:
            assert target.server == server
            first.close()
            assert lifecycle.status(root).url == server
    until(lambda: not lifecycle.is_locked(root))


def test_a_cluster_that_one_of_its_runs_keeps_outlives_them_all(root):
    with clusters.cluster(root, None, "first", keep=False) as target:
        with clusters.cluster(root, None, "second", keep=True):
            pass
        with clusters.cluster(root, None, "third", keep=False):
            pass
        assert lifecycle.status(root).url == target.server
    assert lifecycle.status(root).url == target.server


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
