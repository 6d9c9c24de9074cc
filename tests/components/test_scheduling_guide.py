"""What docs/scheduling.md shows compiles, its jobs are checked, and contradictions are found."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

import kfp_pytorch
from kfp_pytorch.client.packages import checks, find
from kfp_pytorch.launcher.inputs.scheduling.scheduler import SCHEDULERS

GUIDE = (Path(kfp_pytorch.__file__).parent.parent / "docs" / "scheduling.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", GUIDE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("def ")[1].split("(")[0])
def test_an_example_compiles_and_its_job_could_run(example: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(example)
    checks.check(find.find_one(str(tmp_path / "example.py")))


def test_there_is_an_example_of_every_scheduler() -> None:
    assert {name for name in SCHEDULERS if f"scheduling={name}(" in GUIDE} == set(SCHEDULERS)


PIPELINE = """
from kfp import dsl
from kfp_pytorch.components import *
@dsl.pipeline
def p(queue: str = 'team-a'):
    {call}
"""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            "pytorch_job(image='i', scheduling=kai(), labels={'kueue.x-k8s.io/queue-name': 'q'})",
            "for kueue (by the job's label",
        ),
        ("pytorch_job(image='i', scheduling={'scheduler': ['kueue', 'volcano']})", "has one"),
        ("pytorch_job(image='i', placement={'mig': '1g.5gb', 'gpus': 1})", "one or the other"),
        ("pytorch_job(image='i', gpus_per_node=4, placement=gpus(8))", "give it once"),
        ("train_job(scheduling=volcano('q'))", "train_job can have kueue"),
        ("train_job(scheduling=priority('high'))", "cannot be given priorityClassName"),
        ("kubeflow_job(kind='PaddleJob', image='i', scheduling=kai())", "one by one"),
    ],
)
def test_a_contradiction_is_found_when_the_pipeline_compiles(
    call: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "p.py").write_text(PIPELINE.format(call=call))
    package = find.find_one(str(tmp_path / "p.py"))
    with pytest.raises(click.ClickException, match=re.escape(words)):
        checks.check(package)
