import inspect
from typing import Any

from kfp import compiler, components, dsl

from kfp_pytorch.components.pytorch_job import pytorch_job
from kfp_pytorch.launcher.inputs.datasets import SLOTS
from kfp_pytorch.launcher.inputs.declaration import inputs_of
from kfp_pytorch.launcher.jobs.pytorchjob import inputs


def compiled(tmp_path: Any, pipeline: Any) -> dict[str, Any]:
    import yaml

    path = tmp_path / "p.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    return next(yaml.safe_load_all(path.read_text()))


def component_spec(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["components"]["comp-pytorch-job"]


@dsl.pipeline
def one_job(image: str = "train:1"):
    task = pytorch_job(image=image)
    task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2)
    task.set_memory_limit("8Gi")


def test_every_input_is_one_that_the_launcher_reads_and_the_other_way_round() -> None:
    parameters = set(inspect.signature(pytorch_job.python_func).parameters)
    artifacts = {"model", "metrics", "curves", "report", *SLOTS}
    assert parameters - artifacts == set(inputs_of(inputs.PyTorchJobInputs))


def test_every_input_but_the_image_has_a_default_that_is_not_null(tmp_path: Any) -> None:
    parameters = component_spec(compiled(tmp_path, one_job))["inputDefinitions"]["parameters"]
    without = {name for name, p in parameters.items() if "defaultValue" not in p}
    assert without == {"image", "task_config"}
    assert parameters["task_config"]["isOptional"] is True
    assert all(p.get("defaultValue", "") is not None for p in parameters.values())


def test_no_input_or_output_is_described_for_that_is_kept_nine_times(tmp_path: Any) -> None:
    component = component_spec(compiled(tmp_path, one_job))
    kinds = [*component["inputDefinitions"].values(), *component["outputDefinitions"].values()]
    assert not any("description" in each for kind in kinds for each in kind.values())


def test_the_outputs_are_the_four_artifacts_and_two_places(tmp_path: Any) -> None:
    outputs = component_spec(compiled(tmp_path, one_job))["outputDefinitions"]
    titles = {n: a["artifactType"]["schemaTitle"] for n, a in outputs["artifacts"].items()}
    assert titles == {
        "model": "system.Model",
        "metrics": "system.Metrics",
        "curves": "system.HTML",
        "report": "system.Markdown",
    }
    types = {name: p["parameterType"] for name, p in outputs["parameters"].items()}
    assert types == {"storage_uri": "STRING", "folder": "STRING"}


def test_the_defaults_mean_what_the_launcher_takes_for_unset() -> None:
    defaults = {
        name: p.default
        for name, p in inspect.signature(pytorch_job.python_func).parameters.items()
        if p.default is not inspect.Parameter.empty
    }
    assert inputs.parse_inputs(image="i", **defaults) == inputs.parse_inputs(image="i")


def test_the_task_settings_go_to_the_job_and_the_step_itself_asks_for_no_gpu(tmp_path: Any) -> None:
    passthroughs = component_spec(compiled(tmp_path, one_job))["taskConfigPassthroughs"]
    applied = {p["field"]: p.get("applyToTask", False) for p in passthroughs}
    assert applied == {
        "RESOURCES": False,
        "ENV": True,
        "KUBERNETES_AFFINITY": False,
        "KUBERNETES_TOLERATIONS": False,
        "KUBERNETES_NODE_SELECTOR": False,
        "KUBERNETES_VOLUMES": False,
    }


def test_compiled_alone_it_runs_without_data_and_as_a_component_takes_them(tmp_path: Any) -> None:
    spec = compiled(tmp_path, pytorch_job)
    assert "artifacts" not in spec["root"]["inputDefinitions"]
    assert "artifacts" not in spec["root"]["dag"]["tasks"]["pytorch-job"]["inputs"]
    loaded = components.load_component_from_file(str(tmp_path / "p.yaml"))
    assert set(SLOTS) < set(loaded.component_spec.inputs)


def test_a_job_is_never_taken_from_the_cache(tmp_path: Any) -> None:
    task = compiled(tmp_path, one_job)["root"]["dag"]["tasks"]["pytorch-job"]
    assert not task.get("cachingOptions", {}).get("enableCache", False)
