"""A component takes values as people write them, and refuses what KFP would lose, by name."""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from kfp import dsl

from kfp_pytorch.client.packages import references
from kfp_pytorch.components import kserve_deploy, kserve_predict, metric_gate, pytorch_job

component = dsl.component(base_image="python", install_kfp_package=False)


@component
def make(data: dsl.Output[dsl.Dataset], model: dsl.Output[dsl.Model]) -> str:
    return ""


@component
def table() -> dict:
    return {}


@component
def count() -> int:
    return 1


@component
def listed() -> list:
    return []


class Color(enum.StrEnum):
    RED = "red"


def tasks(body: Callable[[], Any]) -> dict[str, Any]:
    """The tasks of a pipeline with this body, as KFP compiles it."""

    @dsl.pipeline(name="p")
    def pipeline() -> None:
        body()

    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    return spec["root"]["dag"]["tasks"]


def constants(call: Any, **arguments: Any) -> dict[str, Any]:
    """The constants that a component's task gets."""
    (task,) = tasks(lambda: call(**arguments)).values()
    inputs = task["inputs"]["parameters"]
    return {name: inputs[name]["runtimeValue"]["constant"] for name in arguments if name in inputs}


@pytest.mark.parametrize(
    ("written", "handed_on"),
    [
        ({"nproc_per_node": 2}, {"nproc_per_node": "2"}),
        ({"cpu": 4, "memory": "8Gi"}, {"cpu": "4", "memory": "8Gi"}),
        ({"cpu": 0.5}, {"cpu": "0.5"}),
        ({"gpus_per_node": "8", "num_nodes": 2.0}, {"gpus_per_node": 8, "num_nodes": 2}),
        ({"run_as_root": "True"}, {"run_as_root": True}),
        ({"command": "python -u 'my train.py'"}, {"command": ["python", "-u", "my train.py"]}),
        ({"command": "python \\\n  train.py"}, {"command": ["python", "train.py"]}),
        ({"command": ("python", Path("/a/b.py"))}, {"command": ["python", "/a/b.py"]}),
        ({"args": "--epochs=3"}, {"args": ["--epochs=3"]}),
        ({"args": ("--epochs", 3)}, {"args": ["--epochs", 3]}),
        ({"image_pull_secrets": "registry"}, {"image_pull_secrets": ["registry"]}),
        ({"output_uri": Path("/data")}, {"output_uri": "/data"}),
        ({"name": Color.RED}, {"name": "red"}),
        ({"command": Path("/my scripts/a.py")}, {"command": ["/my scripts/a.py"]}),
        ({"args": Path("/my data")}, {"args": ["/my data"]}),
        ({"env": {"N": 3, "X": Path("/x")}}, {"env": {"N": 3, "X": "/x"}}),
        ({"tolerations": ({"key": "gpu"},)}, {"tolerations": [{"key": "gpu"}]}),
        ({"namespace": None, "num_nodes": None}, {}),
        ({"num_nodes": ""}, {"num_nodes": 1}),
    ],
)
def test_what_people_write_becomes_what_kfp_takes(
    written: dict[str, Any], handed_on: dict[str, Any]
) -> None:
    assert constants(pytorch_job, image="i", **written) == {"image": "i", **handed_on}


def test_every_component_takes_them() -> None:
    def body() -> None:
        made = make()
        metric_gate(metrics=pytorch_job(image="i").outputs["metrics"], minimum=1)
        kserve_deploy(model=made.outputs["model"], service_name="s", cpu=1, gpus="1")
        kserve_predict(url="http://x", model=made.outputs["model"], ready_timeout="60")

    inputs = {name: task.get("inputs", {}).get("parameters") for name, task in tasks(body).items()}
    assert inputs["metric-gate"]["minimum"]["runtimeValue"]["constant"] == 1.0
    assert inputs["kserve-deploy"]["gpus"]["runtimeValue"]["constant"] == 1
    assert inputs["kserve-predict"]["ready_timeout"]["runtimeValue"]["constant"] == 60


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"num_nodes": "two"}, "pytorch-job: num_nodes must be a whole number, not 'two'"),
        ({"num_nodes": True}, "num_nodes must be a whole number, not True"),
        ({"run_as_root": 1}, "run_as_root must be true or false, not 1"),
        ({"command": "cd /a && python b.py"}, "no shell runs it, which '&&' needs. Write [\"sh\""),
        ({"command": "python a.py > log"}, "which '>' needs"),
        ({"command": "python a.py; date"}, "which ';' needs"),
        ({"command": "python 'a"}, "No closing quotation"),
        ({"command": "python $HOME/a.py"}, "which '$HOME' needs. Write [\"sh\""),
        ({"command": "A=1 python a.py"}, "which 'A=1' needs: put variables into env"),
        ({"command": '["python"]'}, "command must be a list, such as"),
        ({"command": [["python"]]}, "command[0] must be a string, a number or true/false, not ['p"),
        ({"nproc_per_node": True}, "nproc_per_node must be a string, not True"),
        ({"args": "--epochs 3"}, "write a list: ['--epochs', '3'] or ['--epochs 3']"),
        ({"args": 3}, "args must be a list"),
        ({"args": {"lr"}}, "args is {'lr'} (a set), which no JSON holds"),
        ({"hyperparameters": "lr=1"}, "hyperparameters is 'lr=1' (a str); write a dict"),
        ({"hyperparameters": {"lr": None}}, "hyperparameters['lr'] is None"),
        ({"hyperparameters": {1: 2}}, "hyperparameters has the key 1"),
        ({"hyperparameters": {"size": (1, 2)}}, "hyperparameters['size'] must be a string, a numb"),
        ({"hyperparameters": {"lr": float("nan")}}, "hyperparameters['lr'] is nan"),
        ({"labels": {"a": {"b": object}}}, "labels['a']['b'] is <class 'object'> (a type)"),
        ({"namespace": ["a"]}, "namespace must be a string"),
        ({"cpu": dsl.Dataset}, "cpu is"),
        ({"dataset": "s3://b/data"}, "dataset is 's3://b/data' (a str), where an artifact belongs"),
        ({"dataset": dict.fromkeys("abcde", "x")}, "dataset has 5 entries, a, b, c, d, e; it may"),
        ({"dataset": {"a": "x"}}, "dataset['a'] is 'x'"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_the_call(written: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError) as raised:
        constants(pytorch_job, image="i", **written)
    assert said in str(raised.value)


@pytest.mark.parametrize("env", ["TOKEN=abc123", {"TOKEN": {"abc123"}}])
def test_an_environment_is_not_quoted_for_it_may_hold_secrets(env: Any) -> None:
    with pytest.raises(TypeError, match="env") as raised:
        constants(pytorch_job, image="i", env=env)
    assert "abc123" not in str(raised.value)


def test_an_argument_that_is_not_known_is_told_by_kfp() -> None:
    with pytest.raises(TypeError, match='unexpected keyword argument "nodes"'):
        constants(pytorch_job, image="i", nodes=2)


def test_what_the_run_makes_stays_as_it_is() -> None:
    def body() -> None:
        number = count().output
        pytorch_job(
            image=f"registry/{make().outputs['Output']}",
            num_nodes=number,
            command=f"python train.py --n {number}",
            hyperparameters={"n": number, "text": f"n-{number}"},
        )

    inputs = tasks(body)["pytorch-job"]["inputs"]["parameters"]
    place = "{{$.inputs.parameters['pipelinechannel--count-Output']}}"
    assert inputs["num_nodes"]["taskOutputParameter"]["producerTask"] == "count"
    assert inputs["command"]["runtimeValue"]["constant"] == ["python", "train.py", "--n", place]
    hyperparameters = inputs["hyperparameters"]["runtimeValue"]["constant"]
    assert hyperparameters == {"n": place, "text": f"n-{place}"}


def test_a_number_of_the_run_is_taken_where_a_text_is_wanted() -> None:
    @dsl.pipeline(name="p")
    def pipeline(processes: int = 2, memory: float = 1e9) -> None:
        pytorch_job(image="i", nproc_per_node=processes, cpu=count().output, memory=memory)
        with dsl.ParallelFor([1, 2]) as each:
            pytorch_job(image="i", nproc_per_node=each)

    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    inputs = spec["root"]["dag"]["tasks"]["pytorch-job"]["inputs"]["parameters"]
    made = {name: inputs[name]["runtimeValue"]["constant"] for name in ("cpu", "memory")}
    place = "{{{{$.inputs.parameters['pipelinechannel--{}']}}}}"
    assert made == {"cpu": place.format("count-Output"), "memory": place.format("memory")}
    assert inputs["nproc_per_node"]["runtimeValue"]["constant"] == place.format("processes")
    assert references.problem(spec) == ""


def test_one_artifact_or_a_dict_of_them_reach_the_job_with_their_names() -> None:
    def body() -> None:
        made = make()
        imported = dsl.importer(artifact_uri="s3://b/x", artifact_class=dsl.Artifact)
        pytorch_job(image="i", dataset=made.outputs["data"])
        several = {"a": made.outputs["data"], "b": made.outputs["model"], "c": imported.output}
        pytorch_job(image="i", dataset={"none": None, **several})

    one, several = (tasks(body)[name]["inputs"] for name in ("pytorch-job", "pytorch-job-2"))
    assert set(one["artifacts"]) == {"dataset"}
    assert set(one["parameters"]) == {"image"}
    assert set(several["artifacts"]) == {"dataset", "dataset_2", "dataset_3"}
    assert several["artifacts"]["dataset_3"]["taskOutputArtifact"]["producerTask"] == "importer"
    names = several["parameters"]["dataset_names"]["runtimeValue"]["constant"]
    assert names == ["a", "b", "c"]


def test_a_parameter_is_no_artifact() -> None:
    with pytest.raises(TypeError, match=r"dataset\['Output'\] is output 'Output' of task make, wh"):
        tasks(lambda: pytorch_job(image="i", dataset=make().outputs))
    with pytest.raises(TypeError, match="model is output 'Output' of task make, where an artifact"):
        tasks(lambda: kserve_deploy(service_name="s", model=make().outputs["Output"]))


def test_an_artifact_that_the_pipeline_takes_is_a_data_set_too() -> None:
    @dsl.pipeline(name="p")
    def pipeline(data: dsl.Input[dsl.Dataset]) -> None:
        pytorch_job(image="i", dataset={"a": data})

    spec = json_format.MessageToDict(pipeline.pipeline_spec)
    artifacts = spec["root"]["dag"]["tasks"]["pytorch-job"]["inputs"]["artifacts"]
    assert artifacts == {"dataset": {"componentInputArtifact": "data"}}


@pytest.mark.parametrize("where", ["hyperparameters", "env"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            lambda: make().outputs["data"],
            "holds output 'data' of task make, an artifact, and KFP would hand on no value",
        ),
        (lambda: f"a-{make().outputs['data']}", "pytorch_job(dataset=…), and write {dataset} here"),
        (lambda: {"deep": [make().outputs["data"]]}, "['x']['deep'][0] holds output 'data'"),
        (lambda: make(), "is the task make; write its .outputs['data'] or its .outputs['model']"),
        (lambda: f"{make()}", "is a text with a task in it"),
        (lambda: table().output, "a dict: KFP would put its quotation marks"),
        (lambda: listed().output, "holds output 'Output' of task listed, a list: KFP would put"),
        (lambda: f"{table().output}", "Have a component make the whole of"),
        (lambda: "{{$.inputs.y}}", "holds '{{$.inputs.y}}', which KFP takes for a placeholder"),
        (
            lambda: f"{dsl.WORKSPACE_PATH_PLACEHOLDER}{{{{$}}}}",
            "holds '{{$}}', which KFP takes for",
        ),
        (lambda: {f"{count().output}": 1}, "has a key with a value of the run in it"),
    ],
)
def test_what_kfp_would_lose_within_a_dict_is_refused_with_the_way_out(
    where: str, value: Callable[[], Any], said: str
) -> None:
    with pytest.raises(TypeError, match="pytorch-job: ") as raised:
        tasks(lambda: pytorch_job(image="i", **{where: {"x": value()}}))
    assert said in str(raised.value)
    assert f"{where}['x']" in str(raised.value)


@pytest.mark.parametrize("items", [lambda: [{"lr": 0.1}], lambda: listed().output])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda part: {"hyperparameters": {"a": {"b": [part]}}}, "hyperparameters['a']['b'][0]"),
        (lambda part: {"env": {"LR": part}}, "env['LR']"),
        (lambda part: {"args": [f"--lr={part}"]}, "args[0]"),
        (lambda part: {"name": f"lr-{part}"}, "name"),
    ],
)
def test_a_part_of_a_loops_item_is_refused_but_as_the_whole_of_an_input(
    items: Any, given: Callable[[Any], Any], named: str
) -> None:
    def body() -> None:
        with dsl.ParallelFor(items()) as item:
            pytorch_job(image="i", **given(item.lr))

    with pytest.raises(TypeError) as raised:
        tasks(body)
    assert f"{named} holds the part 'lr' of a loop's item" in str(raised.value)
    assert "a pipeline of its own (@dsl.pipeline)" in str(raised.value)


def test_a_part_of_a_loops_item_reaches_a_dict_through_a_pipeline_of_its_own() -> None:
    @dsl.pipeline(name="one")
    def one(lr: float) -> None:
        pytorch_job(image="i", hyperparameters={"lr": lr})

    @dsl.pipeline(name="p")
    def pipeline() -> None:
        with dsl.ParallelFor([{"lr": 0.1}]) as item:
            one(lr=item.lr)

    assert references.problem(json_format.MessageToDict(pipeline.pipeline_spec)) == ""


def test_outputs_of_branches_and_loops_are_refused_within_a_dict() -> None:
    def branches() -> None:
        flag = count().output
        with dsl.If(flag == 1):
            one = count().output
        with dsl.Else():
            other = count().output
        pytorch_job(image="i", hyperparameters={"n": dsl.OneOf(one, other)})

    def loop() -> None:
        with dsl.ParallelFor([1, 2]):
            each = count()
        pytorch_job(image="i", args=[dsl.Collected(each.output)])

    with pytest.raises(TypeError, match=r"hyperparameters\['n'\] is a dsl.OneOf.*of its own"):
        tasks(branches)
    with pytest.raises(TypeError, match=r"args\[0\] is a dsl.Collected"):
        tasks(loop)
