"""One package in two forms: with the launcher inside, and for an image that has it."""

import copy

import yaml
from kfp import compiler, dsl

from kfp_pytorch.components.embedding import launcher_component
from kfp_pytorch.components.forms import image_form


def ours(name: str) -> str:
    from kfp_pytorch.launcher import constants

    return f"{name} {constants.PREFIX}"


@dsl.component(base_image="python:3.12-slim", packages_to_install=["numpy"])
def theirs(name: str) -> str:
    import numpy

    return f"{name} {numpy.__version__}"


def compiled(tmp_path, *steps):
    @dsl.pipeline(name="mixed")
    def mixed(name: str = "x"):
        for step in steps:
            step(name=name)

    target = tmp_path / "mixed.yaml"
    compiler.Compiler().compile(mixed, str(target))
    return yaml.safe_load(target.read_text())


def container(spec, label):
    return spec["deploymentSpec"]["executors"][label]["container"]


def test_our_step_loses_archive_and_pip_and_changes_its_image(tmp_path):
    spec = compiled(tmp_path, launcher_component(ours))
    before = copy.deepcopy(spec)
    after = image_form(spec, "registry.local/launcher:1")
    ours_after = container(after, "exec-ours")
    assert ours_after["image"] == "registry.local/launcher:1"
    assert ours_after["command"][:2] == ["sh", "-ec"]
    assert not any("pip install" in part or "_ARCHIVE" in part for part in ours_after["command"])
    assert "def ours(name: str) -> str:" in ours_after["command"][-1]
    assert spec == before


def test_image_form_is_what_kfp_makes_of_the_plain_function(tmp_path):
    plain = dsl.component(ours, base_image="launcher", install_kfp_package=False)
    assert image_form(compiled(tmp_path, launcher_component(ours)), "launcher") == compiled(
        tmp_path, plain
    )


def test_steps_of_others_stay_as_they_are(tmp_path):
    spec = compiled(tmp_path, launcher_component(ours), theirs)
    after = image_form(spec, "launcher")
    assert container(after, "exec-theirs") == container(spec, "exec-theirs")
    assert after["root"] == spec["root"]
    assert after["components"] == spec["components"]


def test_a_second_time_changes_the_image_of_nothing(tmp_path):
    once = image_form(compiled(tmp_path, launcher_component(ours)), "launcher")
    assert image_form(once, "another") == once


def test_a_package_with_an_importer_or_no_command_passes(tmp_path):
    spec = {
        "deploymentSpec": {
            "executors": {"exec-a": {"importer": {}}, "exec-b": {"container": {"image": "i"}}}
        }
    }
    assert image_form(spec, "launcher") == spec
