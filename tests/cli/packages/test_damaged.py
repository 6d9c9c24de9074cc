"""Compiled YAML that somebody edited or that was cut off: what is wrong, where, the way out."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from kfp import compiler, components, dsl, kubernetes

from kfp_pytorch.client.packages import checks, parameters
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages import local_features as features
from kfp_pytorch.components import metric_gate
from kfp_pytorch.components.forms import image_form
from kfp_pytorch.local.kfp import runner

TASK = {
    "componentRef": {"name": "comp-t"},
    "inputs": {"parameters": {"n": {"componentInputParameter": "n"}}},
}
PARAMETERS = {"n": {"parameterType": "STRING"}}
SPEC = {
    "pipelineInfo": {"name": "p"},
    "root": {
        "dag": {"tasks": {"t": TASK}},
        "inputDefinitions": {"parameters": PARAMETERS},
    },
    "components": {
        "comp-t": {"executorLabel": "exec-t", "inputDefinitions": {"parameters": PARAMETERS}}
    },
    "deploymentSpec": {"executors": {"exec-t": {"container": {"image": "i"}}}},
}
WITHIN_ITSELF = "&a {inputDefinitions: {parameters: {n: {defaultValue: *a}}}}"
INPUT = "root.dag.tasks.t.inputs.parameters.n"
CONTAINER = "deploymentSpec.executors.exec-t.container"
SHAPES = [
    ("root", [], "root is [], where a mapping belongs"),
    ("root.dag.tasks.t.inputs", "", "root.dag.tasks.t.inputs is '', where a mapping belongs"),
    ("root.dag.tasks.t.inputs", None, "root.dag.tasks.t.inputs is null"),
    ("root.inputDefinitions", True, "root.inputDefinitions is True, where a mapping belongs"),
    ("root.inputDefinitions.parameters.n.description", 3, "description is 3, where text belongs"),
    ("root.inputDefinitions.parameters.n.parameterType", "TEXT", "'TEXT', where one of NUMBER_"),
    ("root.inputDefinitions.parameters.n.isOptional", "no", "'no', where true or false belongs"),
    ("root.dag.tasks.t.dependentTasks", "t", "dependentTasks is 't', where a list belongs"),
    ("root.dag.tasks.t.retryPolicy", {"maxRetryCount": []}, "is [], where a number belongs"),
    ("root.dag.task", {}, "root.dag has 'task', which KFP 2."),
    ("components", {1: {}}, "components has the key 1, which is no text"),
    (f"{CONTAINER}.command", [None], "container.command[0] is null, where text belongs"),
    (INPUT, {"runtimeValue": {"constant": float("nan")}}, "is nan, where a finite number belongs"),
    (INPUT, {"runtimeValue": {}, "componentInputParameter": "n"}, 'multiple "kind" oneof fields'),
    ("pipelineInfo.name", "", "pipelineInfo has no name"),
]
MISSING = [
    ("root", {}, "root has no dag"),
    ("root.dag", {}, "root has no tasks in its dag"),
    ("root.inputDefinitions.parameters.n", {}, "parameters.n has no parameterType"),
    (
        "root.inputDefinitions.parameters.n.defaultValue",
        3,
        "parameters.n.defaultValue is 3, but its parameterType is STRING",
    ),
    ("components", {}, "root.dag.tasks.t has the component 'comp-t', which is missing"),
    ("components.comp-t.executorLabel", "e", "comp-t has the executor 'e', which is missing"),
    ("components.comp-x", {}, "comp-x has the executor None, which is missing"),
    ("root.dag.tasks.t.dependentTasks", ["s"], "names the task 's', which is missing"),
    ("root.dag.tasks.t.dependentTasks", ["t"], "root.dag.tasks go round in a circle: t, t"),
    (
        "components.comp-t",
        {"dag": {"tasks": {"t": {"componentRef": {"name": "comp-t"}}}}},
        "components go round in a circle: comp-t, comp-t",
    ),
    ("root.dag.tasks.t.inputs", {}, "t.inputs.parameters has no n, which its component needs"),
    (INPUT, {}, f"{INPUT} has no value"),
    (INPUT, {"componentInputParameter": "m"}, "from the input 'm' of root, which is missing"),
    (
        INPUT,
        {"taskOutputParameter": {"producerTask": "s"}},
        f"{INPUT} comes from the task 's', which is missing",
    ),
    (
        INPUT,
        {"taskOutputParameter": {"producerTask": "t", "outputParameterKey": "o"}},
        f"{INPUT} comes from the output 'o' of task t, which is missing",
    ),
    (
        "root.dag.tasks.t.parameterIterator",
        {"items": {"raw": "[1"}, "itemInput": "n"},
        "root.dag.tasks.t is a loop over '[1', which is no JSON list",
    ),
    (
        "root.dag.outputs",
        {"parameters": {"o": {"valueFromParameter": {"producerSubtask": "s"}}}},
        "root.dag.outputs comes from the task 's', which is missing",
    ),
    (f"{CONTAINER}.image", "", "exec-t.container has no image"),
    (f"{CONTAINER}.env", [{"value": "v"}], "exec-t.container.env[0] has no name"),
    ("deploymentSpec.executors.exec-t", {}, "executors.exec-t is empty"),
]


def edited(where: str, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    *above, last = where.split(".")
    place: Any = spec
    for key in above:
        place = place[key]
    place[last] = value
    return spec


@pytest.mark.parametrize(("where", "value", "message"), [*SHAPES, *MISSING])
def test_a_damaged_package_is_refused_with_file_place_and_way_out(
    tmp_path, cli, where, value, message
):
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(edited(where, value)))
    result = cli("compile", path, "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert f"{path} is damaged: " in result.output
    assert message in result.output
    assert f"`kfp-pytorch compile PIPELINE --output {path}`" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root: {", "cannot be read as YAML: while parsing"),
        ("root: 2025-13-01", "cannot be read as YAML: month must be in 1..12"),
        ("root: {}", "it has no pipelineInfo"),
        ("pipelineInfo: {}", "it has no root"),
        (f"{json.dumps(SPEC)}\n---\n[]", "the platform's part is [], where a mapping belongs"),
        (f"{json.dumps(SPEC)}\n---\n{{}}\n---\n{{}}", "it has 3 YAML documents"),
        (f"pipelineInfo: {{}}\nroot: {WITHIN_ITSELF}", "a part of it is within itself"),
    ],
)
def test_what_is_no_yaml_or_only_a_part_of_a_package_is_refused(tmp_path, cli, text, message):
    path = tmp_path / "cut.yaml"
    path.write_text(text)
    result = cli("run", path, "--local", "--root", tmp_path / "root")
    assert f"{path} is damaged: " in result.output
    assert message in result.output
    assert not (tmp_path / "root").exists()


@dsl.component(base_image="python", install_kfp_package=False)
def hello(name: str) -> str:
    return name


@dsl.pipeline(name="inner")
def inner(word: str) -> str:
    return hello(name=word).output


@dsl.pipeline(name="rich")
def rich(name: str = "you", items: list = ["a"], least: float = 0.5):  # noqa: B006
    first = hello(name=name).set_env_variable("A", "").set_retry(2)
    kubernetes.add_node_selector(first, "a", "b")
    with dsl.If(inner(word=first.output).output == "you"), dsl.ParallelFor(items) as item:
        hello(name=item)
    with dsl.ParallelFor([{"a": "1"}]) as item:
        hello(name=item.a)
    metrics = dsl.importer("s3://b/m", dsl.Metrics, metadata={"n": name}).output
    metric_gate(metrics=metrics, minimum=least)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("package") / "rich.yaml"
    compiler.Compiler().compile(rich, str(path))
    package = packages.parse(path.read_text(), path)
    spec = image_form(package.spec, "launcher:1")
    return yaml.safe_dump_all([spec, package.platform])


def until_a_step_starts(text: str) -> None:
    """All that a run does with a package before it starts a cluster and the first step."""
    package = packages.parse(text, Path("rich.yaml"))
    parameters.describe(package)
    parameters.require(package, {})
    checks.check(package, {})
    features.check(package)
    spec = runner.local_form(image_form(package.spec, "python"), "the-run")
    assert components.load_component_from_text(json.dumps(spec)).pipeline_spec


VALUES = (None, 3, -1.5, True, "", "x", [], {}, [None], {"x": "y"}, float("inf"))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    return [at] + [place for key, item in items for place in places(item, (*at, key))]


def edit(documents: list[Any], chance: random.Random) -> str:
    """Makes one edit somewhere; returns what it was."""
    every = places(documents)[1:]
    *above, last = chance.choice(every)
    place: Any = documents
    for key in above:
        place = place[key]
    how = chance.choice(("remove", "replace", "rename", "wrap"))
    if how == "remove":
        del place[last]
    elif how == "wrap":
        place[last] = [place[last]]
    elif how == "rename" and isinstance(place, dict):
        place[chance.choice(("x", 1, None))] = place.pop(last)
    else:
        place[last] = chance.choice((*VALUES, *chance.choice(every)))
    return f"{how} {above} {last}: {str(place)[:200]}"


def test_an_edit_anywhere_ends_in_a_message_or_in_what_kfp_loads(text, quick_yaml):
    until_a_step_starts(text)
    documents = list(yaml.safe_load_all(text))
    refused = 0
    for seed in range(100):
        changed = copy.deepcopy(documents)
        what = edit(changed, random.Random(seed))
        try:
            until_a_step_starts(yaml.dump_all(changed, Dumper=yaml.CSafeDumper))
        except click.ClickException as error:
            refused += bool(error.message)
        except Exception as error:
            raise AssertionError(what) from error
    assert refused > 50


def test_a_file_cut_off_anywhere_ends_in_a_message(text, quick_yaml):
    whole = text.index("\n---\n")
    for length in range(100, whole, whole // 30):
        with pytest.raises(click.ClickException, match=r"is damaged|is not a compiled pipeline"):
            until_a_step_starts(text[:length])
