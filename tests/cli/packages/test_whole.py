"""Packages of all that KFP's language has: none of them is taken for a damaged one."""

from pathlib import Path
from typing import NamedTuple, Optional

import click
import pytest
import yaml
from kfp import compiler, dsl, kubernetes

from kfp_pytorch.client.packages import checks, parameters
from kfp_pytorch.client.packages import find as packages
from kfp_pytorch.client.packages import local_features as features

# KFP does not know `str | None`.
Word = Optional[str]  # noqa: UP045
Data = Optional[dsl.Input[dsl.Dataset]]  # noqa: UP045

component = dsl.component(base_image="python", install_kfp_package=False)


@component
def say(word: str = "a") -> str:
    return word


@component
def count(number: int = 3) -> int:
    return number


@component
def values(least: float = 1e300, some: list = [1, {"a": [0.5]}], more: dict = {}) -> list[str]:  # noqa: B006
    return []


@component
def perhaps(word: Word = None, data: Data = None):
    pass


@component
def make(data: dsl.Output[dsl.Dataset], model: dsl.Output[dsl.Model]):
    pass


@component
def use(data: dsl.Input[dsl.Dataset]):
    pass


@component
def use_all(data: dsl.Input[list[dsl.Dataset]]):
    pass


@component
def join(words: list[str]) -> str:
    return ""


@component
def last(status: dsl.PipelineTaskFinalStatus, word: str = "x"):
    pass


@dsl.component(
    base_image="python",
    install_kfp_package=False,
    task_config_passthroughs=[dsl.TaskConfigField.RESOURCES, dsl.TaskConfigField.ENV],
)
def configured(config: dsl.TaskConfig):
    pass


@dsl.container_component
def contained(
    word: str, out: dsl.OutputPath(str), data: dsl.Output[dsl.Dataset], more: Word = None
):
    return dsl.ContainerSpec(
        image="alpine",
        command=["sh", "-c", dsl.ConcatPlaceholder(["echo ", word])],
        args=[dsl.IfPresentPlaceholder("more", ["--more", more], ["none"]), out, data.uri],
    )


class Both(NamedTuple):
    word: str
    data: dsl.Dataset


@dsl.pipeline
def inner(word: str = "q", data: Data = None) -> Both:
    perhaps(word=f"{word} {dsl.PIPELINE_TASK_NAME_PLACEHOLDER}", data=data)
    return Both(say(word=word).output, make().outputs["data"])


@dsl.pipeline
def many() -> list[dsl.Dataset]:
    with dsl.ParallelFor([1, 2]):
        made = make()
    return dsl.Collected(made.outputs["data"])


@dsl.pipeline(name="loops")
def loops(items: list = ["a"], pairs: list = [{"a": "b"}]) -> list[str]:  # noqa: B006
    with dsl.ParallelFor(items, parallelism=2) as item:
        said, made = say(word=item), make()
        with dsl.ParallelFor([1, 2]) as number, dsl.ParallelFor(pairs) as pair:
            count(number=number)
            with dsl.If(pair.a == "b"):
                say(word=pair.a).after(said)
    with dsl.ParallelFor(values().output) as item:
        say(word=item)
    with dsl.ParallelFor([{"a": [1.5]}]) as pair, dsl.ParallelFor(pair.a) as least:
        values(least=least)
    with dsl.ParallelFor(items=many().output) as data:
        use(data=data)
    use_all(data=dsl.Collected(made.outputs["data"]))
    join(words=dsl.Collected(said.output))
    return dsl.Collected(said.output)


@dsl.pipeline(name="branches")
def branches(word: str = "a", number: int = 2**53, yes: bool = True) -> str:
    with dsl.If(word == "a"):
        one = say()
    with dsl.Elif(number > 3):
        two = say()
    with dsl.Else():
        three = say()
    chosen = dsl.OneOf(one.output, two.output, three.output)
    with dsl.ExitHandler(last(word=word), name="at the end"):
        with dsl.If(yes == True):  # noqa: E712
            say(word=chosen)
        inner(word=chosen)
    say(word=f"{word} {dsl.PIPELINE_JOB_ID_PLACEHOLDER}").after(one).ignore_upstream_failure()
    return chosen


@dsl.pipeline(name="artifacts")
def artifacts(uri: str = "gs://b/x", given: Data = None) -> dsl.Dataset:
    data = dsl.importer(uri, dsl.Dataset, reimport=True, metadata={"n": 3, uri: [uri]}).output
    within = inner(word=say().output, data=data)
    perhaps(data=given)
    contained(word="a")
    contained(word=within.outputs["word"], more="b")
    with dsl.If(say().output == "a"):
        one = make()
    with dsl.Else():
        two = make()
    use(data=dsl.OneOf(one.outputs["data"], two.outputs["data"]))
    return within.outputs["data"]


WORKSPACE = dsl.WorkspaceConfig(
    size="5Gi", kubernetes=dsl.KubernetesWorkspaceConfig({"accessModes": ["ReadWriteMany"]})
)


@dsl.pipeline(
    name="settings",
    pipeline_config=dsl.PipelineConfig(WORKSPACE, ttl_seconds_after_finished=60),
)
def settings(name: str = "n", some: dict = {"key": "a"}, cpu: str = "2"):  # noqa: B006
    task = say(word=dsl.WORKSPACE_PATH_PLACEHOLDER).set_cpu_limit(cpu).set_memory_limit("1Gi")
    task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1).set_display_name("Ä")
    task.set_retry(3, backoff_duration="60s", backoff_factor=2.0, backoff_max_duration="3600s")
    task.set_caching_options(True, cache_key="k").set_env_variable("A", "")
    kubernetes.use_secret_as_env(task, name, {"a": "B"}, optional=True)
    kubernetes.use_secret_as_volume(task, say().output, mount_path="/s")
    kubernetes.use_config_map_as_env(task, name, {"a": "B"})
    kubernetes.use_config_map_as_volume(task, "c", mount_path="/c")
    kubernetes.use_field_path_as_env(task, "F", "metadata.name")
    kubernetes.set_image_pull_secrets(task, ["a", name])
    kubernetes.add_pod_label(task, "a", "b")
    kubernetes.set_timeout(task, 20)
    kubernetes.empty_dir_mount(task, "e", "/e", medium="Memory", size_limit="1Gi")
    kubernetes.add_toleration(task, "a", "Equal", "b", "NoExecute", 10)
    kubernetes.add_toleration_json(task, toleration_json=some)
    kubernetes.add_node_selector_json(task, node_selector_json=some)
    kubernetes.add_node_affinity(task, [{"key": "a", "operator": "Exists"}], weight=5)
    kubernetes.set_security_context(task, run_as_user=1000)
    claim = kubernetes.CreatePVC(
        pvc_name_suffix="-x", access_modes=["ReadWriteMany"], size="5Gi", storage_class_name=name
    )
    kubernetes.mount_pvc(task, pvc_name=claim.outputs["name"], mount_path="/p")
    kubernetes.DeletePVC(pvc_name=claim.outputs["name"]).after(task)
    configured().set_cpu_limit("1")


@pytest.mark.parametrize(
    "pipeline",
    [loops, branches, artifacts, settings, inner, many, perhaps, last, contained],
    ids=lambda pipeline: pipeline.name,
)
def test_what_kfp_compiles_is_whole(tmp_path, pipeline):
    path = tmp_path / "package.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    package = packages.parse(path.read_text(), path)
    assert package.text() == path.read_text()
    assert parameters.describe(package)
    checks.check(package, {})


def of_platform(name: str) -> str:
    spec = packages.compile_pipeline("many", many).spec
    executors = {"exec-make": {"bat": ["anything"]}}
    platform = {"platforms": {name: {"deploymentSpec": {"executors": executors}}}}
    return yaml.safe_dump_all([spec, platform])


def test_the_settings_of_a_platform_that_kfp_does_not_know_may_be_anything():
    assert packages.parse(of_platform("other"), Path("many.yaml")).platform
    with pytest.raises(click.ClickException, match="exec-make has 'bat', which KFP"):
        packages.parse(of_platform("kubernetes"), Path("many.yaml"))


@dsl.pipeline(name="outer")
def outer():
    inner()


def test_an_artifact_that_nobody_gives_is_missed_before_a_run_not_in_it():
    with pytest.raises(click.ClickException, match="task inner hands task perhaps the artifact 'd"):
        features.check(packages.compile_pipeline("outer", outer))
    with pytest.raises(click.ClickException, match="the pipeline hands task perhaps the artifact"):
        features.check(packages.compile_pipeline("inner", inner))
    features.check(packages.compile_pipeline("loops", loops))
