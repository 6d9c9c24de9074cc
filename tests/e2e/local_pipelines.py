"""What else KFP has, in a run on this machine."""

from typing import Optional

from kfp import dsl, kubernetes

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
    kubernetes.use_secret_as_env(seen, secret_name="s", secret_key_to_env={"key": "OF_THE_TASK"})
    kubernetes.set_image_pull_policy(seen, "Always")
