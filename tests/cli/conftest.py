"""Pipelines of a person's own, as files."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from harness.command import left_of

from kfp_pytorch.cli import main
from kfp_pytorch.local import lifecycle

MINE = '''
from kfp import dsl
from kfp_pytorch.components import kserve_deploy, kserve_predict, metric_gate, pytorch_job


@dsl.component(base_image="python", install_kfp_package=False)
def add(a: int, b: float = 0.5) -> float:
    return a + b


@dsl.component(base_image="python", install_kfp_package=False)
def choose() -> str:
    return "an-image"


@dsl.pipeline(name="choosing")
def choosing():
    image = choose().output
    pytorch_job(image=image, hyperparameters={"image": image}, num_nodes=2)


@dsl.pipeline(name="adding")
def adding(a: int, b: float = 0.5, words: list = ["x"], flag: bool = False, table: dict = {}):
    """Adds.

    Args:
        a: The first number.
    """
    add(a=a, b=b)


@dsl.pipeline(name="training")
def training(image: str = "mine", nodes: int = 2, output_uri: str = "pvc://claim", word: str = ""):
    pytorch_job(
        image=image,
        num_nodes=nodes,
        output_uri=output_uri,
        hyperparameters={"word": word, "nodes": nodes},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )


@dsl.pipeline(name="serving")
def serving(minimum: float = 0.9, service_name: str = "mine", requests: list = []):
    job = pytorch_job(image="mine")
    metric_gate(metrics=job.outputs["metrics"], minimum=minimum)
    service = kserve_deploy(model=job.outputs["model"], service_name=service_name)
    kserve_predict(url=service.outputs["url"], model=job.outputs["model"], requests=requests)
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.fixture
def quick_yaml(monkeypatch):
    """Reads YAML in C: Python's own reader would take most of the time."""
    monkeypatch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)


@pytest.fixture(scope="session")
def cli():
    """Runs the command in this process, which has imported KFP."""

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture
def root(tmp_path):
    """The folder of a cluster of this test; none of its processes may outlive the test."""
    yield tmp_path / "root"
    lifecycle.stop(tmp_path / "root")
    assert left_of(tmp_path) == []
