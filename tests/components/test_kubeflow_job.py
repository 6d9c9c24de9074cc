"""The examples of kubeflow_job's README compile, and their jobs are checked."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

from kfp_pytorch.client.packages import checks, find
from kfp_pytorch.components.kubeflow_job import kubeflow_job
from kfp_pytorch.launcher.jobs.kubeflowjob.frameworks import FRAMEWORKS

README = (Path(inspect.getfile(kubeflow_job.python_func)).parent / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("def ")[1].split("(")[0])
def test_an_example_compiles_and_its_job_could_run(example: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example)
    checks.check(find.find_one(str(tmp_path / "example.py")))


def test_there_is_an_example_of_every_kind_and_of_a_manifest() -> None:
    shown = "\n".join(EXAMPLES)
    assert {kind for kind in FRAMEWORKS if f'kind="{kind}"' in shown} == set(FRAMEWORKS)
    assert "manifest=JOB" in shown


PIPELINE = """
from kfp import dsl
from kfp_pytorch.components import kubeflow_job
@dsl.pipeline
def p({parameters}):
    kubeflow_job({arguments})
"""


@pytest.mark.parametrize(
    ("parameters", "arguments", "words"),
    [
        ("", "image='i', kind='SparkJob'", "it must be one of TFJob"),
        ("", "image='i'", "kind is not set"),
        ("kind: str = 'TrainJob'", "image='i', kind=kind", "the component train_job"),
        ("", "kind='TFJob'", "image is not set"),
        ("", "image='i', kind='TFJob', replicas={'Worker': 0}", "is 0; it must be from 1"),
    ],
)
def test_what_cannot_work_is_found_when_the_pipeline_compiles(
    parameters: str, arguments: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PIPELINE.format(parameters=parameters, arguments=arguments))
    package = find.find_one(str(tmp_path / "p.py"))
    with pytest.raises(click.ClickException, match=re.escape(words)):
        checks.check(package)


def test_a_kind_that_only_the_run_knows_is_checked_in_the_run(tmp_path: Path) -> None:
    text = PIPELINE.format(parameters="kind: str", arguments="image='i', kind=kind, num_nodes=2")
    (tmp_path / "p.py").write_text(text)
    checks.check(find.find_one(str(tmp_path / "p.py")))
