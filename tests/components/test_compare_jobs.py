"""A loop whose jobs are compared, as the README of `compare_jobs` shows it."""

# No `from __future__ import annotations`: kfp reads the annotations.
import re
from pathlib import Path

import click
import pytest
from kfp import dsl

from kfp_pytorch.client.packages import checks, find
from kfp_pytorch.components import compare_jobs

README = Path(__file__).parents[2] / "components" / "compare_jobs" / "README.md"


def test_the_readme_s_example_compiles() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

    def shown() -> None:
        exec(compile(source, str(README), "exec"), {})

    package = find.compile_pipeline("shown", dsl.pipeline(name="shown")(shown))
    checks.check(package)
    tasks = package.spec["root"]["dag"]["tasks"]
    assert tasks["metric-gate"]["dependentTasks"] == ["compare-jobs"]
    taken = tasks["compare-jobs"]["inputs"]["artifacts"]["models"]["taskOutputArtifact"]
    assert taken["producerTask"].startswith("for-loop")


def test_a_size_that_is_a_group_too_is_found_before_a_run() -> None:
    @dsl.pipeline(name="wrong")
    def wrong() -> None:
        model = dsl.importer(artifact_uri="s3://b/m", artifact_class=dsl.Model)
        with dsl.ParallelFor([1, 2]):
            each = dsl.importer(artifact_uri="s3://b/m", artifact_class=dsl.Model).after(model)
        compare_jobs(models=dsl.Collected(each.output), size="lr", group_by=["lr"])

    with pytest.raises(click.ClickException, match="group_by has 'lr', which is the size"):
        checks.check(find.compile_pipeline("wrong", wrong))
