"""Tasks in an optional branch: the defaults of a pipeline need not suit one that they leave out."""

import re

import pytest
import yaml

pytestmark = pytest.mark.usefixtures("quick_yaml")


@pytest.fixture
def compiling(cli, tmp_path):
    def run(signature, body, *options):
        path = tmp_path / "branching.py"
        lines = "\n    ".join(body.splitlines())
        path.write_text(f"""
from kfp import dsl
from kfp_pytorch.components import kserve_deploy, metric_gate, pytorch_job

@dsl.component(base_image="python")
def ask() -> int:
    return 1

@dsl.pipeline
def branching({signature}):
    {lines}
""")
        return cli("compile", path, "--output", tmp_path / "out", *options)

    return run


IMPORT = "m = dsl.importer(artifact_uri=uri, artifact_class=dsl.Model).output\n"
GATE = "metric_gate(metrics=pytorch_job(image='i').outputs['metrics'], minimum=value)"


@pytest.mark.parametrize(
    ("signature", "condition", "task"),
    [
        ("n: int = 0", "dsl.If(n > 0)", "pytorch_job(image='i', num_nodes=n)"),
        ("n: int = 0", "dsl.If(ask().output > 0)", "pytorch_job(image='i', num_nodes=n)"),
        ("n: int = 0", "dsl.If(n > ask().output)", "pytorch_job(image='i', num_nodes=n)"),
        ("uri: str = ''", "dsl.If(uri != '')", f"{IMPORT}kserve_deploy(model=m, service_name='s')"),
        (
            "uri: str = 's3://b/m', name: str = ''",
            "dsl.If(name != '')",
            f"{IMPORT}kserve_deploy(model=m, service_name=name)",
        ),
        (
            "uri: str = 's3://b/m', name: str = ''",
            "dsl.If(name != '')",
            f"{IMPORT}kserve_deploy(model=m, service_name='s', model_format='pytorch', "
            "runtime=name)",
        ),
        ("flag: bool = False, value: float = -1e308", "dsl.If(flag == True)", GATE),
        (
            "flag: bool = False, value: float = 1e308",
            "dsl.If(flag == True)",
            GATE.replace("minimum=value", "minimum=0.5, maximum=value"),
        ),
        (
            "sizes: list = [0], flag: bool = False",
            "dsl.If(flag == True), dsl.ParallelFor(sizes) as n",
            "pytorch_job(image='i', num_nodes=n)",
        ),
    ],
)
def test_a_branch_that_the_defaults_leave_out_is_no_mistake(compiling, signature, condition, task):
    inside = task.replace("\n", "\n    ")
    result = compiling(signature, f"with {condition}:\n    {inside}")
    assert result.exit_code == 0, result.output


def test_the_other_branch_is_taken_with_the_defaults_and_checked(compiling):
    body = """
with dsl.If(n > 0):
    pytorch_job(image="i", num_nodes=n)
with dsl.Elif(n == 0):
    pytorch_job(image="i", num_nodes=m)
with dsl.Else():
    pytorch_job(image="i", num_nodes=n)"""
    result = compiling("n: int = 0, m: int = -3", body)
    assert result.exit_code == 1
    assert re.findall("num_nodes is (-?[0-9]+)", result.output) == ["-3"]
    assert compiling("n: int = 0, m: int = 3", body).exit_code == 0


@pytest.mark.parametrize("condition", ["n > 0", "n == 0", "ask().output == 1"])
def test_a_constant_that_cannot_work_is_found_whether_or_not_its_branch_runs(compiling, condition):
    result = compiling(
        "n: int = 0", f"with dsl.If({condition}):\n    pytorch_job(image='i', num_nodes=0)"
    )
    assert result.exit_code == 1
    assert "task pytorch-job: num_nodes is 0" in result.output


def test_a_run_that_takes_the_branch_has_its_arguments_checked(compiling, cli, tmp_path):
    body = "with dsl.If(n != 0):\n    pytorch_job(image='i', num_nodes=n)"
    assert compiling("n: int = 0", body).exit_code == 0
    path = tmp_path / "out" / "branching.yaml"
    result = cli("run", path, "--local", "-p", "n=-2")
    assert result.exit_code == 1
    assert "task pytorch-job: num_nodes is -2" in result.output


def test_the_condition_in_a_file_that_somebody_sent_runs_no_code(compiling, cli, tmp_path):
    compiling("n: int = 1", "with dsl.If(n > 0):\n    pytorch_job(image='i', num_nodes=n)")
    path, mark = tmp_path / "out" / "branching.yaml", tmp_path / "mark"
    spec = yaml.safe_load(path.read_text())
    spec["root"]["dag"]["tasks"]["condition-1"]["triggerPolicy"]["condition"] = (
        "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'catch_warnings'][0]()"
        f"._module.__builtins__['open']('{mark}', 'w')"
    )
    path.write_text(yaml.safe_dump(spec))
    assert cli("compile", path, "--output", tmp_path / "again").exit_code == 0
    assert not mark.exists()


def test_a_pipeline_too_large_for_a_run_is_refused_before_its_iterations_are_checked(compiling):
    loops = "with dsl.ParallelFor(list(range(300))) as a, dsl.ParallelFor(list(range(300))) as b:"
    result = compiling("", f"{loops}\n    pytorch_job(image='i', num_nodes=b)")
    assert result.exit_code == 1
    assert "its Workflow grows to" in result.output
    assert "num_nodes" not in result.output
