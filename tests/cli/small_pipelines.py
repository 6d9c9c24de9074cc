"""Pipelines that are quick to run."""

from kfp import dsl, kubernetes

from kfp_pytorch.components import pytorch_job

component = dsl.component(base_image="python", install_kfp_package=False)


@component
def hello(name: str) -> str:
    return f"hello {name}"


@component
def show(text: str) -> str:
    return text


@component
def once(marker: str, result: dsl.Output[dsl.Artifact]) -> str:
    import pathlib

    if not pathlib.Path(marker).exists():
        pathlib.Path(marker).touch()
        raise RuntimeError("the first time fails")
    return result.uri


@component
def who() -> dict:
    import os

    from kubernetes import client, config

    config.load_kube_config()
    api = client.CoreV1Api()
    namespace = config.list_kube_config_contexts()[1]["context"]["namespace"]
    pod = api.read_namespaced_pod(os.environ["KFP_POD_NAME"], namespace)
    owner = pod.metadata.owner_references[0]
    flow = client.CustomObjectsApi().get_namespaced_custom_object(
        "argoproj.io", "v1alpha1", namespace, "workflows", owner.name
    )
    return {
        "same uid": pod.metadata.uid == os.environ["KFP_POD_UID"],
        "phase": pod.status.phase,
        "run": pod.metadata.labels["pipeline/runid"],
        "owner": owner.kind,
        "workflow": flow["metadata"]["uid"] == owner.uid,
    }


@dsl.pipeline(name="greeting")
def greeting(name: str = "you", nodes: int = 1):
    hello(name=name)


@dsl.pipeline(name="telling")
def telling(name: str, text: str = "😀 é"):
    hello(name=name)
    show(text=text)
    show(text="🎉 \x7f \u2028 \\")
    who()


@dsl.pipeline(name="trying")
def trying(marker: str):
    kubernetes.use_secret_as_env(once(marker=marker), "token", {"KEY": "KEY"})


@dsl.pipeline(name="sleeping")
def sleeping(nodes: int = 2):
    pytorch_job(
        image="python:3.12-slim",
        command=["python", "-c", "import time; print('asleep', flush=True); time.sleep(300)"],
        num_nodes=nodes,
    )


@component
def meet(mine: str, other: str):
    import pathlib
    import time

    pathlib.Path(mine).touch()
    while not pathlib.Path(other).exists():
        time.sleep(0.01)


@dsl.pipeline(name="meeting")
def meeting(mine: str, other: str):
    meet(mine=mine, other=other)
