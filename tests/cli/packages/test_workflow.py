"""How large the Workflow of a run becomes, against Workflows that a cluster stored."""

import gzip
import json
import random
from pathlib import Path

import pytest

from kfp_pytorch.client.packages import find, workflow

RECORDS = Path(__file__).resolve().parents[4] / "shared" / "records" / "workflows"
WITHIN = 0.15
BIG = """
from kfp import dsl

@dsl.component(base_image="python", install_kfp_package=False)
def listed() -> list:
    return [1]

@dsl.component(base_image="python", install_kfp_package=False)
def large(text: str):
    '''{filler}'''

@dsl.component(base_image="python", install_kfp_package=False)
def small(text: str = ""):
    pass

@dsl.pipeline(name="looping")
def looping(items: list = {items}):
    with dsl.ParallelFor(items=items) as item:
        large(text=item)
    small()

@dsl.pipeline(name="unknown")
def unknown():
    with dsl.ParallelFor(items=listed().output) as item:
        large(text="a")
"""


def pipelines(folder, filler=0, iterations=1):
    """A file with pipelines whose step has a source that is large and cannot be compressed."""
    path = folder / "mine.py"
    noise = "".join(map(chr, random.Random(1).choices(range(35, 91), k=filler)))
    noise = noise.replace("'", "x")
    path.write_text(BIG.format(filler=noise, items=[str(n) for n in range(iterations)]))
    return path


def estimate(path, name):
    package = find.find_one(f"{path}:{name}")
    return workflow.estimate(package.spec, package.platform)


def recorded(name):
    path = RECORDS / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"there is no record {path}")
    return json.loads(gzip.decompress(path.read_bytes()))


def package_of(stored):
    """The package that a Workflow was made of, from its arguments."""
    arguments = {p["name"]: p["value"] for p in stored["spec"]["arguments"]["parameters"]}
    components, executors, settings = {}, {}, {}
    for name, value in arguments.items():
        kind, _, key = name.partition("-")
        if kind == "components" and key != "root":
            component = json.loads(value)
            label = component["executorLabel"]
            components[label.replace("exec-", "comp-", 1)] = component
            executors[label] = {"container": json.loads(arguments[f"implementations-{key}"])}
        if kind == "kubernetes":
            settings[key.replace("comp-", "exec-", 1)] = json.loads(value)
    spec = {
        "root": json.loads(arguments["components-root"]),
        "components": components,
        "deploymentSpec": {"executors": executors},
    }
    return spec, {"platforms": {"kubernetes": {"deploymentSpec": {"executors": settings}}}}


@pytest.mark.parametrize("name", ["hello", "train_and_serve-image-form"])
def test_the_estimate_is_near_a_recorded_workflow(name):
    stored = recorded(name)
    found = workflow.estimate(*package_of(stored))
    text = json.dumps(stored, separators=(",", ":"), ensure_ascii=False)
    assert found.whole == pytest.approx(len(text.encode()), rel=WITHIN)
    assert found.stored == found.whole


def test_a_loop_counts_with_its_iterations(tmp_path):
    once = estimate(pipelines(tmp_path, 1000), "looping")
    many = estimate(pipelines(tmp_path, 1000, 7), "looping")
    assert many.steps["large"] == pytest.approx(7 * once.steps["large"], rel=0.01)
    assert many.steps["small"] == once.steps["small"]
    assert many.unknown_loops == set()


def test_a_negative_number_of_retries_counts_as_none(tmp_path):
    path = pipelines(tmp_path)
    text, plain = path.read_text(), estimate(path, "looping")
    for retries, same in ((-1, True), (0, True), (2, False)):
        path.write_text(text.replace("small()", f"small().set_retry(num_retries={retries})"))
        nodes = estimate(path, "looping").steps["small"]
        assert (nodes < plain.steps["small"] + 500) is same
        assert nodes >= plain.steps["small"]


def test_a_loop_over_what_a_step_returns_counts_once_with_a_warning(tmp_path, cli):
    path = pipelines(tmp_path, 1000)
    (loop,) = estimate(path, "unknown").unknown_loops
    result = cli("compile", f"{path}:unknown", "--output", tmp_path / "a.yaml")
    assert result.exit_code == 0
    assert (
        f"Warning: unknown: how often {loop} iterates is known only when it runs" in result.stderr
    )


def test_past_the_limit_it_counts_as_argo_stores_it_compressed(tmp_path):
    found = estimate(pipelines(tmp_path, 5000, 20), "looping")
    assert found.whole > workflow.LIMIT
    assert found.spec < found.stored < found.whole / 4


def test_verbose_prints_the_size_and_the_largest_steps(tmp_path, cli):
    path = pipelines(tmp_path, 1000)
    result = cli("compile", f"{path}:looping", "--output", tmp_path / "a.yaml", "--verbose")
    assert "looping: its Workflow grows to about " in result.stderr
    assert "bytes of 1,048,576. The largest steps, in bytes: large " in result.stderr


def test_above_half_of_the_limit_is_a_warning(tmp_path, cli):
    path = pipelines(tmp_path, 60_000)
    result = cli("compile", f"{path}:looping", "--output", tmp_path / "a.yaml")
    assert result.exit_code == 0
    assert "Warning: looping: its Workflow grows to about " in result.stderr


def test_what_no_run_can_end_is_refused_with_its_largest_steps_and_not_written(tmp_path, cli):
    path = pipelines(tmp_path, 50_000, 40)
    result = cli("compile", f"{path}:looping", "--output", tmp_path / "a.yaml")
    assert result.exit_code == 1
    assert "no run could end. The largest steps, in bytes: large " in result.output
    assert not (tmp_path / "a.yaml").exists()


def test_the_shipped_pipeline_is_compiled_without_a_word(tmp_path, cli):
    result = cli("compile", "train_and_serve", "--output", tmp_path / "a.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
