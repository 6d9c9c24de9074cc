"""`kfp-pytorch compile --launcher`: where the steps get the launcher from."""

import pytest
import yaml

pytestmark = pytest.mark.usefixtures("quick_yaml")


def test_image_form_runs_in_the_image_and_installs_nothing(mine, cli, tmp_path):
    target = tmp_path / "image.yaml"
    result = cli(
        "compile", f"{mine}:training", "--output", target, "--launcher", "image=here/launcher:1"
    )
    assert result.exit_code == 0, result.output
    executor = yaml.safe_load(target.read_text())["deploymentSpec"]["executors"]["exec-pytorch-job"]
    assert executor["container"]["image"] == "here/launcher:1"
    assert "pip install" not in target.read_text()


def test_a_compiled_package_can_be_turned_into_image_form_later(mine, cli, tmp_path):
    cli("compile", f"{mine}:training", "--output", tmp_path / "a.yaml")
    cli("compile", tmp_path / "a.yaml", "--output", tmp_path / "b.yaml", "--launcher", "image=i")
    cli("compile", f"{mine}:training", "--output", tmp_path / "c.yaml", "--launcher", "image=i")
    assert (tmp_path / "b.yaml").read_bytes() == (tmp_path / "c.yaml").read_bytes()


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("configmap", "kfp-pytorch-launcher-"),
        ("package", "pip install --quiet --no-warn-script-location 'kfp-pytorch-launcher=="),
        ("package=mine>=2", "'mine>=2'"),
    ],
)
def test_the_launcher_comes_from_where_the_option_says(mine, cli, tmp_path, launcher, words):
    target = tmp_path / "a.yaml"
    result = cli("compile", f"{mine}:training", "--output", target, "--launcher", launcher)
    assert result.exit_code == 0, result.output
    spec = next(yaml.safe_load_all(target.read_text()))
    command = spec["deploymentSpec"]["executors"]["exec-pytorch-job"]["container"]["command"]
    assert words in "\n".join(command)


@pytest.mark.parametrize("launcher", ["wheel", "image", "package='x'"])
def test_another_launcher_is_refused_with_those_that_there_are(mine, cli, tmp_path, launcher):
    result = cli("compile", mine, "--output", tmp_path / "out", "--launcher", launcher)
    assert result.exit_code == 2
    assert "--launcher: The " in result.output
    assert not (tmp_path / "out").exists()


def test_an_image_that_no_kubelet_pulls_is_refused(mine, cli, tmp_path):
    result = cli("compile", mine, "--output", tmp_path / "out", "--launcher", "image=Mine:1:2")
    assert result.exit_code == 2
    assert "--launcher image is 'Mine:1:2'; write it as REGISTRY/NAME:TAG" in result.output
    assert not (tmp_path / "out").exists()
