"""`distribute`: a component of a component, compiled."""

# No `from __future__ import annotations`: kfp reads the annotations.
from pathlib import Path
from typing import Any, NamedTuple

import kfp
import pytest
import yaml
from kfp import compiler, dsl
from kfp.dsl import Artifact, Input, Model, Output

from kfp_pytorch.components import distribute, kai, metric_gate, priority, volcano, yunikorn
from kfp_pytorch.components.forms import image_form
from kfp_pytorch.launcher.jobs.distributed.component import from_argument

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


@dsl.component(
    base_image="torch:1",
    packages_to_install=["numpy<3", "a[b]>=1; python_version<'4'"],
    pip_index_urls=["https://pip.example/simple"],
)
def train(data: Input[Artifact], model: Output[Model], rate: float = 0.5) -> float:
    print("{{$.inputs}} $HOME `x` \\d")
    return rate


@dsl.component(base_image="torch:1")
def several(word: str) -> NamedTuple("Outputs", first=str, second=int):
    return (word, 1)


def compiled(pipeline: Any, tmp_path: Path) -> dict[str, Any]:
    target = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(target))
    return next(yaml.safe_load_all(target.read_text()))


def argument(spec: dict[str, Any], executor: str) -> str:
    return spec["deploymentSpec"]["executors"][executor]["container"]["args"][-1]


def test_it_has_the_inputs_and_outputs_of_the_component_and_its_source_byte_for_byte(
    tmp_path: Path,
) -> None:
    distributed = distribute(train, nodes=3, procs_per_node=2, output_uri="pvc://work")

    @dsl.pipeline(name="p")
    def pipeline():
        data = dsl.importer(artifact_uri="s3://b/data", artifact_class=Artifact)
        task = distributed(data=data.output)
        assert sorted(task.outputs) == ["Output", "model"]
        several_task = distribute(several)(word="x")
        assert sorted(several_task.outputs) == ["first", "second"]

    spec = compiled(pipeline, tmp_path)
    component = spec["components"]["comp-train"]
    assert sorted(component["inputDefinitions"]["parameters"]) == ["rate", "task_config"]
    assert sorted(component["inputDefinitions"]["artifacts"]) == ["data"]
    assert sorted(component["outputDefinitions"]["artifacts"]) == ["job_report", "model"]
    text = argument(spec, "exec-train")
    assert "{{" not in text
    made = from_argument(text)
    assert made.function == "train"
    assert made.source == train.component_spec.implementation.container.command[-1]
    assert "{{$.inputs}} $HOME `x` \\\\d" in made.source
    index = [
        "--index-url",
        "https://pip.example/simple",
        "--trusted-host",
        "https://pip.example/simple",
    ]
    quiet = ["--quiet", "--no-warn-script-location", *index]
    assert made.install[0] == [*quiet, "numpy<3", "a[b]>=1; python_version<'4'"]
    assert made.install[1][-3:-1] == [f"kfp=={kfp.__version__}", "--no-deps"]
    assert made.inputs == {
        "name": "train",
        "image": "torch:1",
        "num_nodes": 3,
        "nproc_per_node": "2",
        "restart_policy": "Never",
        "output_uri": "pvc://work",
    }
    assert compiled(pipeline, tmp_path) == spec


def test_it_is_cached_as_the_component_is_and_takes_the_settings_of_its_task(
    tmp_path: Path,
) -> None:
    @dsl.pipeline(name="p")
    def pipeline():
        task = distribute(several, image="torch:2")(word="x")
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(8).set_retry(2)
        task.set_env_variable("A", "$(B) ä").set_caching_options(False)

    spec = compiled(pipeline, tmp_path)
    task = spec["root"]["dag"]["tasks"]["several"]
    assert task["cachingOptions"] == {}
    assert compiled(distribute(several), tmp_path)["root"]["dag"]["tasks"]["several"][
        "cachingOptions"
    ] == {"enableCache": True}
    assert task["retryPolicy"]["maxRetryCount"] == 2
    fields = [
        each["field"] for each in spec["components"]["comp-several"]["taskConfigPassthroughs"]
    ]
    assert {"RESOURCES", "ENV", "KUBERNETES_NODE_SELECTOR"} <= {*fields}
    container = spec["deploymentSpec"]["executors"]["exec-several"]["container"]
    assert container["env"] == [{"name": "A", "value": "$(B) ä"}]
    assert from_argument(argument(spec, "exec-several")).inputs["image"] == "torch:2"


def test_one_component_is_distributed_in_several_sizes_in_one_pipeline(tmp_path: Path) -> None:
    small, large = distribute(several, nodes=1), distribute(several, nodes=8, name="large")

    @dsl.pipeline(name="p")
    def pipeline(words: list = ["a", "b"], more: bool = True):  # noqa: B006
        with dsl.ParallelFor(words) as word:
            first = small(word=word)
            large(word=first.outputs["first"])
        with dsl.If(more == True):  # noqa: E712
            small(word="x")

    spec = compiled(pipeline, tmp_path)
    made = [
        from_argument(argument(spec, executor)).inputs
        for executor in spec["deploymentSpec"]["executors"]
    ]
    assert sorted((each["name"], each["num_nodes"]) for each in made) == [
        ("large", 8), ("several", 1), ("several", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("a\0b", "word holds a NUL character"),
        ("{{$.inputs.parameters['x']}}", "takes for a placeholder"),
        (dsl.WORKSPACE_PATH_PLACEHOLDER + "/x", "the pods of a job do not have"),
    ],
)
def test_values_that_no_pod_would_get_as_they_are_are_refused_when_the_task_is_made(
    word: str, words: str
) -> None:
    def pipeline():
        distribute(several)(word=word)

    with pytest.raises(ValueError, match=words):
        dsl.pipeline(name="p")(pipeline)


def test_what_fails_is_not_started_again_unless_the_job_is_elastic() -> None:
    def inputs(component: Any) -> dict[str, Any]:
        return from_argument(component.component_spec.implementation.container.args[-1]).inputs

    assert inputs(distribute(several))["restart_policy"] == "Never"
    assert inputs(distribute(several, restart_policy="OnFailure"))["restart_policy"] == "OnFailure"
    assert "restart_policy" not in inputs(distribute(several, elastic={"min_nodes": 1}))
    assert "restart_policy" not in inputs(distribute(several, kind="train_job"))


def test_the_image_form_keeps_the_component(tmp_path: Path) -> None:
    spec = compiled(distribute(several), tmp_path)
    changed = image_form(spec, "launcher:1")["deploymentSpec"]["executors"]["exec-several"]
    assert changed["container"]["image"] == "launcher:1"
    assert changed["container"]["args"][-1] == argument(spec, "exec-several")


@dsl.component(base_image="torch:1", packages_to_install=["x"], use_venv=True)
def in_a_venv():
    pass


@dsl.component
def without_torch():
    pass


@dsl.container_component
def container():
    return dsl.ContainerSpec(image="busybox")


@dsl.component(base_image="torch:1")
def takes_settings(settings: dsl.TaskConfig):
    pass


@dsl.component(base_image="torch:1")
def has_our_input(task_config: str):
    pass


@dsl.component(base_image="torch:1")
def has_our_output(job_report: Output[Artifact]):
    pass


@pytest.mark.parametrize(
    ("component", "inputs", "words"),
    [
        (container, {}, "distribute takes what @dsl.component makes"),
        (several.python_func, {}, "distribute takes what @dsl.component makes"),
        (metric_gate, {}, "is a component of kfp_pytorch"),
        (in_a_venv, {}, "has use_venv"),
        (without_torch, {}, "which has no torch"),
        (takes_settings, {}, "takes a dsl.TaskConfig"),
        (has_our_input, {}, "has an input or output 'task_config', as distribute; rename it"),
        (has_our_output, {}, "has an input or output 'job_report'"),
        (several, {"kind": "tf_job"}, "must be one of pytorch_job, train_job"),
        (several, {"command": ["x"]}, "command is set by distribute"),
        (several, {"nodes": 0}, "^nodes is 0"),
        (several, {"procs_per_node": 0}, "^procs_per_node is 0"),
        (several, {"output_uri": "/tmp/x"}, "A path on a node is not seen"),
        (several, {"source": {"files": {"a.py": "x" * 100_000}}}, "the limit is 100,000"),
        (several, {"gpu": 1}, "has no input 'gpu'"),
        (several, {"num_nodes": 3}, "no input 'num_nodes'; give nodes"),
        (several, {"nproc_per_node": "2"}, "give procs_per_node"),
        (several, {"nodes": 2, "scheduling": volcano("q", min_member=3)}, "starts with 2 pods"),
        (
            several,
            {"labels": {KUEUE_QUEUE: "a"}, "scheduling": kai("b")},
            "and for kueue (by",
        ),
        (several, {"kind": "train_job", "scheduling": priority("x")}, "priorityClassName"),
        (several, {"key": "{{$.pipeline_job_uuid}}"}, "a placeholder"),
    ],
)
def test_what_cannot_be_distributed_is_refused_by_name(
    component: Any, inputs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        distribute(component, **inputs)


def test_what_the_pods_request_may_be_set_on_the_task() -> None:
    assert distribute(several, scheduling=yunikorn("root.team")).name == "several"
