import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from kfp import compiler, dsl

from kfp_pytorch.client.packages import checks, find
from kfp_pytorch.components import canary_check, kserve_deploy, kserve_predict, kserve_rollout
from kfp_pytorch.launcher.kserve.manifest import parse_inputs
from kfp_pytorch.launcher.steps import kserve_deploy as deploy_step
from kfp_pytorch.launcher.steps import kserve_predict as predict_step

# A value for each input that differs from its default.
OTHERS: dict[str, Any] = {
    "service_name": "other",
    "namespace": "team",
    "storage_uri": "s3://models/other",
    "model_format": "onnx",
    "runtime": "a-runtime",
    "protocol": "v2",
    "model_name": "other",
    "command": ["serve"],
    "args": ["--a"],
    "container": {"image": "a:1"},
    "transformer": {"image": "a:1"},
    "deployment_mode": "Knative",
    "cpu": "2",
    "memory": "3Gi",
    "gpus": 1,
    "env": {"A": "1"},
    "volumes": [{"name": "a", "emptyDir": {}}],
    "volume_mounts": [{"name": "a", "mountPath": "/a"}],
    "min_replicas": 2,
    "max_replicas": 5,
    "autoscaler": "external",
    "scale_metric": "cpu",
    "scale_target": 50,
    "canary_traffic_percent": 10,
    "request_timeout": 30,
    "batcher": {"maxBatchSize": 2},
    "service_account": "models",
    "storage_key": "minio",
    "storage_parameters": {"region": "a"},
    "node_selector": {"a": "b"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "service_patch": {"spec": {"predictor": {"timeout": 3}}},
    "timeout": 60,
}


@dsl.pipeline
def serve():
    model = dsl.importer(
        artifact_uri="s3://models/digits", artifact_class=dsl.Model, reimport=False
    ).output
    deployed = kserve_deploy(model=model, service_name="digits")
    kserve_predict(url=deployed.outputs["cluster_url"], model=model)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("compiled") / "p.yaml"
    compiler.Compiler().compile(serve, str(path))
    return next(yaml.safe_load_all(path.read_text()))


def test_neither_is_ever_taken_from_the_cache(spec: dict[str, Any]) -> None:
    # A service may be gone, or serve another model, when the same run starts again.
    for name in ("kserve-deploy", "kserve-predict"):
        task = spec["root"]["dag"]["tasks"][name]
        assert not task.get("cachingOptions", {}).get("enableCache", False), name


def test_no_default_is_null(spec: dict[str, Any]) -> None:
    for name in ("comp-kserve-deploy", "comp-kserve-predict"):
        component = spec["components"][name]
        for key, definition in component["inputDefinitions"]["parameters"].items():
            assert definition.get("defaultValue") is not None or key in ("service_name", "url")


@pytest.mark.parametrize(
    ("component", "step"), [(kserve_deploy, deploy_step), (kserve_predict, predict_step)]
)
def test_the_steps_outputs_are_the_components(
    spec: dict[str, Any], component: Any, step: Any
) -> None:
    outputs = spec["components"][f"comp-{component.name}"]["outputDefinitions"]["parameters"]
    assert set(outputs) == set(step.Outputs._fields)
    # KFP takes the fields of a tuple in this order.
    annotation = component.python_func.__annotations__["return"]
    assert annotation._fields == step.Outputs._fields


def defaults() -> dict[str, Any]:
    parameters = inspect.signature(kserve_deploy.python_func).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in ("model", "service", "service_name")
    }


def parsed(**inputs: Any) -> Any:
    uri = None if inputs.get("storage_uri") else "s3://models/digits"
    return parse_inputs(uri, {}, **{"service_name": "digits", **defaults()} | inputs)


def test_the_defaults_work() -> None:
    assert parsed().predictor["minReplicas"] == 1


# What an input goes with.
BESIDE: dict[str, dict[str, Any]] = {
    "canary_traffic_percent": {"deployment_mode": "Knative"},
    "scale_metric": {"scale_target": 50, "max_replicas": 5},
    "scale_target": {"scale_metric": "cpu", "max_replicas": 5},
    "storage_parameters": {"storage_key": "minio"},
}


@pytest.mark.parametrize("name", sorted({*defaults(), "service_name"} - {"gpu_resource"}))
def test_every_input_makes_a_difference(name: str) -> None:
    beside = BESIDE.get(name, {})
    alone = {key: value for key, value in beside.items() if not key.startswith("scale")}
    assert parsed(**{name: OTHERS[name]} | beside) != parsed(**alone)


def test_the_resource_of_accelerators_is_the_one_that_is_named() -> None:
    model = parsed(gpus=2, gpu_resource="amd.com/gpu").predictor["model"]
    assert model["resources"]["limits"] == {"amd.com/gpu": "2"}


@pytest.mark.parametrize("component", [kserve_deploy, kserve_predict])
def test_the_readme_names_every_output_that_pipelines_wire(component: Any) -> None:
    folder = Path(inspect.getfile(component.python_func)).parent
    assert "cluster_url" in (folder / "README.md").read_text()


EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PIPELINE = """
from types import SimpleNamespace

from kfp import dsl
from kfp_pytorch.components import (
    canary_check, kserve_deploy, kserve_predict, kserve_rollout, metric_gate, pytorch_job
)


@dsl.pipeline
def example():
    model = dsl.importer(artifact_uri="s3://models/digits", artifact_class=dsl.Model).output
    trained = SimpleNamespace(outputs={"model": model})
    deployed = kserve_deploy(model=model, service_name="digits")
"""


@pytest.mark.parametrize(
    ("component", "least"), [(kserve_predict, 7), (canary_check, 1), (kserve_rollout, 1)]
)
def test_every_example_of_the_readme_is_compiled_and_its_inputs_checked(
    component: Any, least: int, tmp_path: Path
) -> None:
    readme = Path(inspect.getfile(component.python_func)).parent / "README.md"
    examples = EXAMPLE.findall(readme.read_text(encoding="utf-8"))
    assert len(examples) >= least
    for i, example in enumerate(examples):
        path = tmp_path / f"example{i}.py"
        path.write_text(PIPELINE + textwrap.indent(example, "    "))
        for package in find.find(str(path)):
            checks.check(package)


def test_every_pipeline_of_the_readme_is_compiled_and_its_inputs_checked(tmp_path: Path) -> None:
    readme = Path(inspect.getfile(kserve_deploy.python_func)).parent / "README.md"
    examples = EXAMPLE.findall(readme.read_text(encoding="utf-8"))
    pipelines = [example for example in examples if "@dsl.pipeline" in example]
    assert pipelines
    for i, example in enumerate(pipelines):
        path = tmp_path / f"example{i}.py"
        imports = PIPELINE.partition("@dsl.pipeline")[0]
        path.write_text(f"{imports}{example}")
        for package in find.find(str(path)):
            checks.check(package)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('url=URL, headers={"a b": "c"}', "headers has 'a b'"),
        ("url=URL, request_timeout=0", "request_timeout is 0"),
        ('url="http://a", protocol="v2"', "model_name is not set"),
        ('url=URL, requests=[{"prompt": "a"}]', "messages or prompt, which protocol 'v1' does not"),
        ('url=URL, protocol="grpc", headers={"a!b": "c"}', "no name of gRPC's metadata"),
        ('url=deployed.outputs["url"], protocol="v1", requests=[{"inputs": []}]', "a list of one"),
        ('url=deployed.outputs["url"], max_latency={"p42": 1}', "unknown field 'p42'"),
        ('url=deployed.outputs["url"], token_env="ey.JhbGci"', "token_env must be the name of"),
    ],
)
def test_what_cannot_be_asked_is_found_before_anything_runs(
    tmp_path: Path, given: str, message: str
) -> None:
    path = tmp_path / "asking.py"
    url = '    URL = "http://a/v1/models/m:predict"\n'
    path.write_text(f"{PIPELINE}{url}    kserve_predict({given})\n")
    (package,) = find.find(str(path))
    with pytest.raises(click.ClickException) as refused:
        checks.check(package)
    assert message in refused.value.message


GRPC = """    served = kserve_deploy(model=model, service_name="grpc", protocol="grpc")
    kserve_predict(url=served.outputs["url"], model=model, {given})
"""


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ('protocol="grpc"', "model_name is not set"),
        ('model_name="grpc"', "protocol is not set"),
        ('protocol="grpc", model_name=served.outputs["service_name"]', ""),
    ],
)
def test_a_service_of_grpc_is_asked_with_the_name_that_its_url_does_not_have(
    tmp_path: Path, given: str, missing: str
) -> None:
    path = tmp_path / "asking.py"
    path.write_text(PIPELINE + GRPC.format(given=given))
    (package,) = find.find(str(path))
    if not missing:
        checks.check(package)
        return
    with pytest.raises(click.ClickException) as refused:
        checks.check(package)
    assert missing in refused.value.message
    assert "output service_name" in refused.value.message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('container={"image": "i", "readinessProbe": 5}', "predictor's pods would be refused"),
        ('transformer={"image": "i", "readinessProbe": 5}', "transformer's pods would be refused"),
        ('volumes=[{"name": "v", "secret": 5}]', "volumes[0].secret"),
        ('service_patch={"spec": {"predictor": {"tolerations": [5]}}}', "tolerations"),
        ('volume_mounts=[{"name": "of-the-runtime", "mountPath": "/x"}]', ""),
    ],
)
def test_a_predictor_whose_pods_would_be_refused_is_found_before_anything_runs(
    tmp_path: Path, given: str, message: str
) -> None:
    path = tmp_path / "deploying.py"
    path.write_text(f'{PIPELINE}    kserve_deploy(model=model, service_name="a", {given})\n')
    (package,) = find.find(str(path))
    if not message:
        checks.check(package)
        return
    with pytest.raises(click.ClickException) as refused:
        checks.check(package)
    assert message in refused.value.message


@pytest.mark.parametrize("requests", ['[{"inputs": [TENSOR]}]', '[{"prompt": "a"}]'])
def test_a_url_that_only_the_run_knows_may_be_of_the_protocol_of_the_requests(
    tmp_path: Path, requests: str
) -> None:
    path = tmp_path / "asking.py"
    tensor = '{"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]}'
    path.write_text(
        f"{PIPELINE}    TENSOR = {tensor}\n"
        f'    kserve_predict(url=deployed.outputs["url"], requests={requests})\n'
    )
    for package in find.find(str(path)):
        checks.check(package)
