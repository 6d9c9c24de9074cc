"""What the READMEs show is run as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import kfp
import pytest
import yaml

import kfp_pytorch
from kfp_pytorch.client.packages import checks
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.launcher.constants import IMAGE_TAG

ROOT = Path(kfp_pytorch.__file__).parent.parent


def shown(heading: str, file: str = "README.md") -> list[str]:
    """The Python that a section shows."""
    text = (ROOT / file).read_text(encoding="utf-8")
    section = re.split(r"^##+ ", text.partition(f"# {heading}\n")[2], flags=re.MULTILINE)[0]
    return re.findall(r"^```python\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)


def test_runs_are_started_and_scheduled_with_arguments_that_kfp_and_the_pipeline_take() -> None:
    (start,), (schedule,) = shown("Start a run from Python"), shown("Schedule recurring runs")
    client = mock.create_autospec(kfp.Client)
    with mock.patch.object(kfp, "Client", client):
        exec(start + schedule, {})
    started = client.return_value.create_run_from_pipeline_func.call_args
    scheduled = client.return_value.create_recurring_run.call_args
    package = ROOT / scheduled.kwargs["pipeline_package_path"]
    spec = next(iter(yaml.safe_load_all(package.read_text(encoding="utf-8"))))
    parameters = spec["root"]["inputDefinitions"]["parameters"].keys()
    assert started.kwargs["arguments"].keys() <= parameters
    assert scheduled.kwargs["params"].keys() <= parameters


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_registry_of_the_predictors_image_is_named_in_the_kustomization(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    kustomization = folder / "kustomization.yaml"
    text = kustomization.read_text(encoding="utf-8")
    kustomization.write_text(re.sub("^# (images:|  )", r"\1", text, flags=re.MULTILINE))
    made = subprocess.run(["kubectl", "kustomize", folder], stdout=subprocess.PIPE, check=True)
    (runtime,) = (o for o in yaml.safe_load_all(made.stdout) if o["kind"] == "ServingRuntime")
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


@pytest.mark.parametrize("name", ["on_triton", "language_models", "own_servers"])
def test_a_service_of_each_kind_of_runtime_compiles(tmp_path: Path, name: str) -> None:
    (start,) = shown("kserve_deploy", "components/kserve_deploy/README.md")[:1]
    examples = shown("Runtimes", "components/kserve_deploy/README.md")
    pipelines = [each for each in examples if each.startswith("@dsl.pipeline")]
    (tmp_path / "serve.py").write_text("\n".join([start, *pipelines]))
    checks.check(packages.find_one(f"{tmp_path / 'serve.py'}:{name}"))
