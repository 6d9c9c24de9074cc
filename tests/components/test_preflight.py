"""A pipeline that begins with `preflight`, as its README shows it."""

# No `from __future__ import annotations`: kfp reads the annotations.
import re
from pathlib import Path

import click
import pytest
from kfp import dsl

from kfp_pytorch.client.packages import checks, find, workflow
from kfp_pytorch.components import kserve_deploy, preflight, pytorch_job

README = Path(__file__).parents[2] / "components" / "preflight" / "README.md"


@dsl.pipeline(name="checked")
def checked(num_nodes: int = 2, output_uri: str = "pvc://training"):
    ready = preflight(
        components=["pytorch_job", "kserve_deploy"],
        num_nodes=num_nodes,
        gpus_per_node=8,
        output_uri=output_uri,
    )
    job = pytorch_job(image="train", num_nodes=num_nodes, gpus_per_node=8, output_uri=output_uri)
    job.after(ready)
    kserve_deploy(model=job.outputs["model"], service_name="digits")


@pytest.fixture(scope="module")
def package():
    return find.compile_pipeline("checked", checked)


def test_nothing_else_begins_before_it(package):
    tasks = package.spec["root"]["dag"]["tasks"]
    assert "dependentTasks" not in tasks["preflight"]
    assert tasks["pytorch-job"]["dependentTasks"] == ["preflight"]
    assert tasks["preflight"]["cachingOptions"] == {}
    checks.check(package)


def test_the_workflow_of_its_run_stays_below_half_of_the_limit(package):
    assert workflow.estimate(package.spec, package.platform).stored < 524_288


def test_a_constant_that_cannot_work_is_refused_before_the_run():
    @dsl.pipeline(name="wrong")
    def wrong():
        preflight(components=["pytorch_job", "no_such"])

    with pytest.raises(click.ClickException, match="components has 'no_such'"):
        checks.check(find.compile_pipeline("wrong", wrong))


def test_the_readme_s_example_compiles():
    (source,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)

    def shown():
        exec(compile(source, str(README), "exec"), {})

    package = find.compile_pipeline("shown", dsl.pipeline(name="shown")(shown))
    tasks = package.spec["root"]["dag"]["tasks"]
    assert tasks["pytorch-job"]["dependentTasks"] == ["preflight"]
