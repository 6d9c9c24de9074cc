"""What authors write around the components: Secrets by name, exit handlers, nested pipelines."""

# No `from __future__ import annotations`: kfp reads the annotations.
import json
from typing import Any

import yaml
from kfp import compiler, dsl, kubernetes

from kfp_pytorch.components import kserve_deploy, metric_gate, pytorch_job


@dsl.pipeline(name="secretive")
def secretive(secret: str = "a-secret", claim: str = "a-claim", bucket_secret: str = ""):
    job = pytorch_job(image="train", output_secret=bucket_secret)
    kubernetes.use_secret_as_env(job, secret_name=secret, secret_key_to_env={"token": "HF_TOKEN"})
    kubernetes.mount_pvc(job, pvc_name=claim, mount_path="/data")


@dsl.pipeline(name="inner")
def inner(image: str, labels: dict[str, Any] = {}, resume_from: str = "") -> str:  # noqa: B006
    return pytorch_job(image=image, labels=labels, resume_from=resume_from).outputs["storage_uri"]


@dsl.component(base_image="python", install_kfp_package=False)
def tell(text: str = "over"):
    print(text)


@dsl.pipeline(name="outer")
def outer(image: str = "train", minimum: float = 0.5):
    last = tell()
    with dsl.ExitHandler(last):
        inner(image=image)
        job = pytorch_job(image=image)
        metric_gate(metrics=job.outputs["metrics"], metric="accuracy", minimum=minimum)
        with dsl.If(job.outputs["storage_uri"] != ""):
            kserve_deploy(model=job.outputs["model"], service_name="s").set_display_name("Deploy")


def compiled(pipeline, tmp_path):
    path = tmp_path / "package.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    return path.read_text(), list(yaml.safe_load_all(path.read_text()))


def test_secrets_and_claims_are_pipeline_parameters_and_only_their_names_are_compiled(tmp_path):
    text, (spec, platform) = compiled(secretive, tmp_path)
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    (job,) = settings.values()
    (variables,) = job["secretAsEnv"]
    assert variables["secretNameParameter"] == {"componentInputParameter": "secret"}
    (mount,) = job["pvcMount"]
    assert mount["pvcNameParameter"] == {"componentInputParameter": "claim"}
    assert "a-secret" in text
    inputs = spec["root"]["dag"]["tasks"]["pytorch-job"]["inputs"]["parameters"]
    assert inputs["output_secret"] == {"componentInputParameter": "bucket_secret"}


def test_no_optional_input_that_is_left_alone_is_forwarded_without_a_value(tmp_path):
    _, (spec, *_) = compiled(outer, tmp_path)
    for name, component in spec["components"].items():
        for task in component.get("dag", {}).get("tasks", {}).values():
            for source in task.get("inputs", {}).get("parameters", {}).values():
                forwarded = source.get("componentInputParameter")
                declared = component["inputDefinitions"]["parameters"]
                if forwarded and declared[forwarded].get("isOptional"):
                    assert declared[forwarded].get("defaultValue") is not None, (name, forwarded)
    assert "null" not in json.dumps(spec["root"])


def test_components_work_inside_exit_handlers_conditions_and_nested_pipelines(tmp_path):
    _, (spec, *_) = compiled(outer, tmp_path)
    labels = set(spec["deploymentSpec"]["executors"])
    assert {"exec-pytorch-job", "exec-metric-gate", "exec-kserve-deploy", "exec-tell"} <= labels
    triggered = [
        task["triggerPolicy"]["strategy"]
        for task in spec["root"]["dag"]["tasks"].values()
        if "strategy" in task.get("triggerPolicy", {})
    ]
    assert triggered == ["ALL_UPSTREAM_TASKS_COMPLETED"]
