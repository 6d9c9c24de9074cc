"""What a backend's version knows of a package."""

import click
import pytest
from harness.kfp_api.pipelines import greeting
from kfp import dsl, kubernetes
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from kfp_pytorch.client.packages import backends, find


def compiled(pipeline):
    return find.compile_pipeline("p", pipeline)


@dsl.component(base_image="python", install_kfp_package=False)
def say(word: str = "a") -> str:
    return word


@dsl.pipeline(name="settings")
def settings():
    task = say()
    kubernetes.set_timeout(task, 20)
    kubernetes.empty_dir_mount(task, "e", "/e")
    kubernetes.set_security_context(task, run_as_user=1)


@dsl.pipeline(
    name="workspace",
    pipeline_config=dsl.PipelineConfig(
        dsl.WorkspaceConfig(
            size="5Gi",
            kubernetes=dsl.KubernetesWorkspaceConfig({"accessModes": ["ReadWriteMany"]}),
        )
    ),
)
def workspace():
    say(word=dsl.WORKSPACE_PATH_PLACEHOLDER)


@dsl.pipeline(name="resources")
def resources():
    say().set_cpu_limit("1").set_caching_options(True, cache_key="k")


def test_every_field_of_the_table_is_one_that_this_kfp_knows():
    known = set()
    for module in (pipeline_spec_pb2, kubernetes_executor_config_pb2):
        descriptors = list(module.DESCRIPTOR.message_types_by_name.values())
        while descriptors:
            descriptor = descriptors.pop()
            descriptors += descriptor.nested_types
            known |= {f"{descriptor.full_name}.{field.json_name}" for field in descriptor.fields}
            for enum in descriptor.enum_types:
                known |= {f"{enum.full_name}.{value.name}" for value in enum.values}
    assert backends._SINCE.keys() <= known


@pytest.mark.parametrize(
    ("pipeline", "version"),
    [(greeting, (2, 0)), (settings, (2, 16)), (workspace, (2, 14)), (resources, (2, 4))],
    ids=lambda each: getattr(each, "name", ""),
)
def test_a_package_needs_the_first_version_that_knows_all_of_it(pipeline, version):
    package = compiled(pipeline)
    assert backends.needed(package) == version
    backends.check(package, version)
    if version > (2, 0):
        with pytest.raises(click.ClickException, match="which does not know"):
            backends.check(package, (version[0], version[1] - 1))


def test_each_field_is_named_with_the_version_that_knows_it():
    with pytest.raises(click.ClickException) as refused:
        backends.check(compiled(settings), (2, 0))
    words = refused.value.message
    assert "settings needs KFP 2.16 or later, and this is 2.0" in words
    assert "exec-say.activeDeadlineSeconds (KFP 2.1)" in words
    assert "exec-say.emptyDirMounts (KFP 2.3)" in words
    assert "exec-say.securityContext (KFP 2.16)" in words


@pytest.mark.parametrize(("text", "version"), [("2.15", (2, 15)), ("v2.4.1", (2, 4))])
def test_a_version_is_read(text, version):
    assert backends.read_version(text) == version


@pytest.mark.parametrize(("text", "message"), [("new", "no version"), ("1.8.5", "too old")])
def test_a_version_that_is_none_or_too_old_is_refused(text, message):
    with pytest.raises(click.ClickException, match=message):
        backends.read_version(text)
