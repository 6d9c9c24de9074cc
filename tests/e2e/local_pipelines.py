"""What else KFP has, in a run on this machine."""

from typing import Optional

from kfp import dsl, kubernetes

from kfp_pytorch.components import kserve_deploy, kserve_predict, pytorch_job

component = dsl.component(base_image="python", install_kfp_package=False)


@component
def look(given: Optional[dsl.Input[dsl.Dataset]] = None) -> str:  # noqa: UP045
    import os

    return f"{os.environ.get('OF_THE_TASK')} {given is None}"


@component
def fail(text: str):
    raise ValueError(f"{text} is no good")


@component
def clean(marker: str):
    import pathlib

    pathlib.Path(marker).touch()


@dsl.pipeline(name="cleaning")
def cleaning(marker: str):
    with dsl.ExitHandler(clean(marker=marker)):
        seen = look().set_env_variable("OF_THE_TASK", "here")
        fail(text=seen.output)


@dsl.container_component
def echo():
    return dsl.ContainerSpec(image="busybox", command=["echo"], args=["hello"])


@dsl.pipeline(name="echoing")
def echoing(marker: str):
    clean(marker=marker)
    echo()


@dsl.pipeline(name="secretive")
def secretive():
    seen = look()
    kubernetes.set_timeout(seen, 60)
    kubernetes.set_image_pull_policy(seen, "Always")


@component
def read(folder: str, digest: str, claimed: str, colour: str, scratch: str) -> str:
    import hashlib
    import os
    import pathlib

    assert os.environ["NAMESPACE"] == "default"
    assert list(pathlib.Path(scratch).iterdir()) == []
    assert pathlib.Path(colour).read_text() == os.environ["COLOUR"]
    values = [os.environ["TOKEN"], pathlib.Path(folder, "key").read_text(), os.environ["COLOUR"]]
    pathlib.Path(claimed, "written").write_text(str(pathlib.Path(folder, "key").stat().st_mode))
    found = hashlib.sha256(" ".join(values).encode()).hexdigest()
    if found != digest:
        raise RuntimeError("the values are not those that were given")
    return os.environ["KEY_FILE"]


@dsl.pipeline(name="given")
def given(digest: str, secret: str = "token"):
    task = read(
        folder="/secrets/token",
        digest=digest,
        claimed="/data/x",
        colour="/colours/c",
        scratch="/scratch",
    )
    task.set_env_variable("KEY_FILE", "/secrets/token/key")
    kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env={"key": "TOKEN"})
    kubernetes.use_secret_as_volume(task, secret_name="token", mount_path="/secrets/token")
    kubernetes.use_config_map_as_env(task, "colours", config_map_key_to_env={"c": "COLOUR"})
    kubernetes.use_config_map_as_volume(task, "colours", mount_path="/colours")
    kubernetes.use_field_path_as_env(task, "NAMESPACE", "metadata.namespace")
    kubernetes.empty_dir_mount(task, volume_name="scratch", mount_path="/scratch")
    kubernetes.mount_pvc(task, pvc_name="mine", mount_path="/data")


JOB = """
import hashlib, os, pathlib, sys
hidden = pathlib.Path(sys.argv[1]).read_text()
assert hidden == os.environ["TOKEN"] == os.environ["OF_INPUT"]
pathlib.Path(sys.argv[2], "written").write_text(hashlib.sha256(hidden.encode()).hexdigest())
"""


@dsl.pipeline(name="job-given")
def job_given():
    task = pytorch_job(
        image="python",
        command=["python", "-c", JOB, "/secrets/token/key", "/data"],
        env={"OF_INPUT": {"secretKeyRef": {"name": "token", "key": "key"}}},
    )
    kubernetes.use_secret_as_env(task, secret_name="token", secret_key_to_env={"key": "TOKEN"})
    kubernetes.use_secret_as_volume(task, secret_name="token", mount_path="/secrets/token")
    kubernetes.mount_pvc(task, pvc_name="mine", mount_path="/data")


@dsl.pipeline(name="large")
def large(gpus: int = 64):
    clean(marker="/nowhere/at/all")
    pytorch_job(image="python", command=["python", "-c", "pass"], gpus_per_node=gpus)


@component
def count() -> int:
    return 64


@dsl.pipeline(name="late")
def late(patch: dict = {}, cpu: str = "1"):  # noqa: B006
    task = pytorch_job(
        image="python",
        command=["python", "-c", "import os; assert os.environ['PET_NPROC_PER_NODE'] == '1'"],
        gpus_per_node=count().output,
        nproc_per_node="gpu",
        pod_template_patch=patch,
    )
    task.set_cpu_limit(cpu)


@dsl.component(base_image="python", packages_to_install=["kfp-pytorch-try"])
def tried() -> str:
    import try_it

    return try_it.__file__


@dsl.pipeline(name="installing")
def installing():
    tried()


def serve(uri: str, secret: str, **inputs):
    model = dsl.importer(
        artifact_uri="s3://nowhere/model",
        artifact_class=dsl.Model,
        metadata={"storage_uri": uri},
    ).output
    token = {"TOKEN": {"secretKeyRef": {"name": secret, "key": "key"}}}
    made = kserve_deploy(model=model, service_name="mine", env=token, **inputs)
    asked = kserve_predict(
        url=made.outputs["url"],
        requests=[{"instance": 1, "prediction": 2}],
        token_env="PREDICTOR_TOKEN",
    )
    kubernetes.use_secret_as_env(
        asked, secret_name=secret, secret_key_to_env={"key": "PREDICTOR_TOKEN"}
    )


@dsl.pipeline(name="serving-mine")
def serving_mine():
    serve("pvc://mine/x", "token", model_format="mine")


@dsl.pipeline(name="serving-elsewhere")
def serving_elsewhere():
    serve("pvc://nowhere/x", "nonsuch", model_format="mine", gpus=64)
    serve("s3://bucket/x", "nonsuch", model_format="mine", storage_key="mine")


@dsl.component(base_image="python")
def shown(service: dsl.Input[dsl.Artifact], url: str):
    import json
    import pathlib

    about = json.loads(pathlib.Path(service.path).read_text())
    assert about["url"] == service.metadata["url"] == url
    assert about["name"] == "mine"
    assert about["storage_uri"] == "pvc://mine/x"


@dsl.pipeline(name="serving-a-container")
def serving_a_container(script: str):
    made = kserve_deploy(
        service_name="mine",
        storage_uri="pvc://mine/x",
        container={"image": "mine:1", "command": ["sh", "-ec"], "args": [script]},
        env={"TOKEN": {"secretKeyRef": {"name": "token", "key": "key"}}, "KNOWN": "a-hidden-value"},
    )
    shown(service=made.outputs["service"], url=made.outputs["url"])


@dsl.pipeline(name="serving-on-a-cluster")
def serving_on_a_cluster():
    kserve_deploy(service_name="a", storage_uri="s3://bucket/x", model_format="triton")
    kserve_deploy(service_name="b", container={"image": "i:1"})
    kserve_deploy(service_name="c", container={"image": "i:1", "command": ["nonsuch-server"]})
    kserve_deploy(service_name="d", storage_uri="hf://a/b", model_format="kfp-pytorch")
    kserve_deploy(service_name="e", storage_uri="s3://bucket/x", transformer={"image": "i:1"})


@dsl.pipeline(name="over-grpc")
def over_grpc():
    job = pytorch_job(
        image="python",
        command=["python", "-m", "kfp_pytorch.training"],
        hyperparameters={"epochs": 1},
        key=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    model = job.outputs["model"]
    made = kserve_deploy(model=model, service_name="over-grpc", protocol="grpc")
    kserve_predict(
        url=made.outputs["cluster_url"], model=model, model_name="over-grpc", protocol="grpc"
    )
