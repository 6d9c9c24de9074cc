"""What the READMEs show is run as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from harness.command import left_of
from harness.kfp_api.server import KfpServer
from harness.mpi import needs_mpi

import kfp_pytorch
from kfp_pytorch.cli import main
from kfp_pytorch.client import runs
from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.launcher.constants import IMAGE_TAG

ROOT = Path(kfp_pytorch.__file__).parent.parent


def shown(heading: str, file: str = "README.md") -> list[str]:
    """The Python that a section shows."""
    text = (ROOT / file).read_text(encoding="utf-8")
    section = re.split(r"^##+ ", text.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    return re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)


def commands(heading: str, file: str = "README.md") -> list[list[str]]:
    """The calls of kfp-pytorch that a section shows, each as its arguments."""
    text = (ROOT / file).read_text(encoding="utf-8")
    section = re.split(r"^##+ ", text.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    shell = "\n".join(re.findall(r"^```sh\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE))
    lines = [shlex.split(line, comments=True) for line in shell.replace("\\\n", " ").splitlines()]
    return [line[1:] for line in lines if line[:1] == ["kfp-pytorch"]]


@pytest.fixture
def kfp_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KfpServer]:
    """KFP's API server of tests, as where KFP is; a run on it takes no time."""
    monkeypatch.setattr(runs, "POLL_S", 0.0)
    monkeypatch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
    started = KfpServer()
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", started.url)
    monkeypatch.chdir(ROOT)
    yield started
    started.stop()


def test_a_package_is_uploaded_and_run_from_a_terminal(kfp_server: KfpServer) -> None:
    shown_there = [each for each in commands("Upload a pipeline package") if "-n" not in each]
    assert [each[0] for each in shown_there] == ["upload", "run", "runs"]
    for arguments in shown_there:
        ended = CliRunner().invoke(main, arguments)
        assert ended.exit_code == 0, ended.output
    assert "train-and-serve" in ended.output
    (version,) = kfp_server.store.versions.values()
    given = kfp_server.run().answer()
    reference = given["pipeline_version_reference"]
    assert reference["pipeline_version_id"] == version["pipeline_version_id"]
    assert given["state"] == "SUCCEEDED"


def test_runs_are_started_from_python_and_scheduled_from_there_and_from_a_terminal(
    kfp_server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    start, with_kfp = shown("Start a run from Python")
    (schedule,) = shown("Schedule recurring runs")
    exec(start + with_kfp + schedule, {})
    assert capsys.readouterr().out.startswith("succeeded  http://")
    own, kfps = (run.answer()["runtime_config"] for run in kfp_server.store.runs.values())
    assert own["parameters"].items() > kfps["parameters"].items()
    (made,) = kfp_server.store.recurring.values()
    assert made["trigger"] == {"cron_schedule": {"cron": "0 0 2 * * *"}}
    said = [CliRunner().invoke(main, each) for each in commands("Schedule recurring runs")]
    assert [ended.exit_code for ended in said] == [0, 0, 0, 0], said
    assert said[0].output.startswith("Schedule nightly is unchanged")
    assert kfp_server.store.recurring == {}


def test_the_commands_for_kfp_take_what_their_page_shows(tmp_path: Path) -> None:
    words = {"FILE": str(tmp_path / "parameters.yaml"), "NAME=VALUE": "a=b"}
    Path(words["FILE"]).touch()
    found = commands("On Kubeflow Pipelines", "docs/kfp.md")
    assert len(found) == 13
    for arguments in found:
        command: click.Command = main
        given = [words.get(word, word) for word in arguments]
        while isinstance(command, click.Group):
            command = command.commands[given.pop(0)]
        command.make_context(command.name, given)


@pytest.mark.slow
@pytest.mark.local_cluster
def test_the_notebook_runs_here_and_on_kfp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nbclient
    import nbformat

    (path,) = (ROOT / "docs" / "notebooks").glob("*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")]
    server = KfpServer(advances=4)
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", server.url)
    monkeypatch.setenv("KFP_PYTORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    try:
        nbclient.NotebookClient(
            notebook, timeout=550, resources={"metadata": {"path": str(tmp_path)}}
        ).execute()
    finally:
        server.stop()
    said = [
        "".join(output.get("text", "") for output in cell.get("outputs", []))
        for cell in notebook.cells
    ]
    assert any(each.startswith("succeeded accuracy 0.9") for each in said), said
    assert any("pytorch-job: succeeded" in each for each in said), said
    assert server.run().state == "SUCCEEDED"
    assert server.store.recurring == {}
    assert left_of(tmp_path) == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_registry_of_the_predictors_image_is_named_in_the_kustomization(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    kustomization = folder / "kustomization.yaml"
    text = kustomization.read_text(encoding="utf-8")
    kustomization.write_text(re.sub("^# (images:|  )", r"\1", text, flags=re.MULTILINE))
    made = subprocess.run(["kubectl", "kustomize", folder], stdout=subprocess.PIPE, check=True)
    runtimes = [o for o in yaml.safe_load_all(made.stdout) if o["kind"] == "ServingRuntime"]
    assert len(runtimes) == 2
    for runtime in runtimes:
        (container,) = runtime["spec"]["containers"]
        assert container["image"] == f"REGISTRY/kfp-pytorch-serving:{IMAGE_TAG}"


def own(folder: Path) -> tuple[Path, Path]:
    """Write the pipeline of one's own and its script."""
    pipeline, script = shown("Your own pipeline")
    (folder / "my_pipeline.py").write_text(pipeline)
    (folder / "train.py").write_text(script)
    return folder / "my_pipeline.py", folder / "train.py"


def test_the_pipeline_of_ones_own_compiles(tmp_path: Path) -> None:
    pipeline, _ = own(tmp_path)
    assert packages.find_one(f"{pipeline}:my_training").name == "my_training"


def test_the_pipeline_with_data_compiles(tmp_path: Path) -> None:
    (pipeline,) = shown("Data", "components/pytorch_job/README.md")
    (tmp_path / "data.py").write_text(pipeline)
    package = packages.find_one(f"{tmp_path / 'data.py'}:train_on_data")
    checks.check(package)


def test_the_elastic_job_compiles(tmp_path: Path) -> None:
    (pipeline,) = shown("Elastic jobs", "components/pytorch_job/README.md")
    (tmp_path / "elastic.py").write_text(pipeline)
    checks.check(packages.find_one(f"{tmp_path / 'elastic.py'}:elastic"))


def test_the_script_of_ones_own_is_that_of_the_docs(tmp_path: Path) -> None:
    _, script = own(tmp_path)
    assert script.read_text() == (ROOT / "docs" / "scripts" / "reporting" / "ddp.py").read_text()


@pytest.mark.slow
def test_the_pipeline_of_ones_own_runs_with_its_script(
    cluster, training_image: str, tmp_path: Path
) -> None:
    pipeline, script = own(tmp_path)
    ran = cluster.run(
        f"{pipeline}:my_training",
        image=training_image,
        script=str(script),
        gpus_per_node=0,
        output_uri="pvc://kfp-pytorch",
    )
    assert ran.code == 0, ran.stderr
    assert ran.summary["metrics"]["accuracy"] >= 0.9
    assert ran.summary["model"]["storage_uri"].endswith("/export")


@pytest.mark.slow
def test_a_job_goes_on_from_the_folder_of_the_one_before(
    cluster, training_image: str, tmp_path: Path
) -> None:
    (pipeline,) = shown("One job after another", "components/pytorch_job/README.md")
    (tmp_path / "chain.py").write_text(pipeline)
    ran = cluster.run(f"{tmp_path / 'chain.py'}:train_on", image=training_image)
    assert ran.code == 0, ran.stderr
    assert re.search(r"master-0 \| .* going on from \S+/first-\w+/checkpoints", ran.stderr)


@pytest.mark.slow
@pytest.mark.local_cluster
@needs_mpi
def test_the_mpijob_of_the_page_on_local_runs_runs(cluster, tmp_path: Path) -> None:
    (pipeline,) = shown("MPIJobs", "docs/local.md")
    (tmp_path / "example.py").write_text(pipeline)
    ran = cluster.run(f"{tmp_path / 'example.py'}:by_mpi")
    assert ran.code == 0, ran.stderr
    for rank in range(4):
        assert f"rank {rank} of 4 adds up to 6" in ran.stderr


@pytest.mark.parametrize("name", ["on_triton", "language_models", "own_servers"])
def test_a_service_of_each_kind_of_runtime_compiles(tmp_path: Path, name: str) -> None:
    (start,) = shown("kserve_deploy", "components/kserve_deploy/README.md")[:1]
    examples = shown("Runtimes", "components/kserve_deploy/README.md")
    pipelines = [each for each in examples if each.startswith("@dsl.pipeline")]
    (tmp_path / "serve.py").write_text("\n".join([start, *pipelines]))
    checks.check(packages.find_one(f"{tmp_path / 'serve.py'}:{name}"))
