"""One package in three forms: the launcher from a ConfigMap, an image, or a Python package."""

import copy
import json

import pytest
import yaml
from kfp import compiler, components, dsl, kubernetes

from kfp_pytorch.components import bundle, forms, metric_gate, pytorch_job

CONTAINER_LIMIT = 3072
BOOTSTRAP_LIMIT = 2100


@dsl.component(base_image="python:3.12-slim", packages_to_install=["numpy"])
def theirs(name: str) -> str:
    import numpy

    return f"{name} {numpy.__version__}"


@dsl.pipeline(name="mixed")
def mixed(name: str = "x"):
    job = pytorch_job(image=name)
    metric_gate(metrics=job.outputs["metrics"], minimum=0.5)
    theirs(name=name)


def compiled(tmp_path, pipeline=mixed):
    target = tmp_path / "mixed.yaml"
    compiler.Compiler().compile(pipeline, str(target))
    return next(yaml.safe_load_all(target.read_text()))


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("compiled"))


def container(spec, name):
    return spec["deploymentSpec"]["executors"][f"exec-{name}"]["container"]


FORMS = ["configmap", "image=registry.local/launcher:1", "package", "package=x @ https://a/b.whl"]
IMPORT = "from kfp_pytorch.components.pytorch_job.component import pytorch_job\n"


def test_a_component_is_in_configmap_form(spec):
    assert forms.with_launcher(spec, "configmap") == spec
    assert container(spec, "pytorch-job")["image"] == forms.BASE_IMAGE
    assert forms.wanted_configmaps(spec) == {bundle.reference()}


def test_the_source_is_a_short_bootstrap_and_one_import(spec):
    source = container(spec, "pytorch-job")["command"][-1]
    assert source.endswith(IMPORT)
    assert len(source.removesuffix(IMPORT).encode()) < BOOTSTRAP_LIMIT
    assert "@" not in source
    compile(source, "bootstrap", "exec")


@pytest.mark.parametrize("launcher", FORMS)
def test_each_form_is_short(spec, launcher):
    made = forms.with_launcher(spec, launcher)
    for name in ("pytorch-job", "metric-gate"):
        text = json.dumps(container(made, name), separators=(",", ":"))
        assert len(text.encode()) < CONTAINER_LIMIT


def test_image_form_installs_nothing(spec):
    made = container(forms.image_form(spec, "registry.local/launcher:1"), "pytorch-job")
    assert made["image"] == "registry.local/launcher:1"
    assert made["command"][:2] == ["sh", "-ec"]
    assert made["command"][-1] == IMPORT


def test_package_form_installs_what_kfp_would_install_beside_itself_but_nothing_of_python_3_8(spec):
    made = container(forms.package_form(spec, "x==1"), "pytorch-job")

    @dsl.component(base_image=forms.BASE_IMAGE, packages_to_install=["x==1"])
    def plain():
        pass

    kfps = plain.component_spec.implementation.container.command
    assert made["command"][:2] == kfps[:2]
    of_python_3_8 = """ 'typing-extensions>=3.7.4,<5; python_version<"3.9"'"""
    assert made["command"][2] == kfps[2].replace(of_python_3_8, "").strip() != kfps[2].strip()
    assert [word.split() for word in made["command"][3:-1]] == [w.split() for w in kfps[3:-1]]
    assert made["command"][-1] == IMPORT


def test_the_package_is_the_launcher_of_this_version(spec):
    command = container(forms.with_launcher(spec, "package"), "pytorch-job")["command"]
    assert f"'{forms.PACKAGE}'" in command[2]
    assert "'kfp==" in command[2]


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("second", FORMS)
def test_every_form_can_be_made_of_every_other(spec, first, second):
    through = forms.with_launcher(forms.with_launcher(spec, first), second)
    assert through == forms.with_launcher(spec, second)


@pytest.mark.parametrize("launcher", FORMS)
def test_steps_of_others_and_the_given_package_stay_as_they_are(spec, launcher):
    before = copy.deepcopy(spec)
    after = forms.with_launcher(spec, launcher)
    assert spec == before
    assert container(after, "theirs") == container(spec, "theirs")
    assert after["root"] == spec["root"]
    assert after["components"] == spec["components"]


@pytest.mark.parametrize("launcher", FORMS)
def test_a_pipeline_in_python_takes_a_form_before_it_is_compiled(spec, launcher, tmp_path):
    made = forms.pipeline_with_launcher(mixed, launcher)
    assert compiled(tmp_path, made) == forms.with_launcher(spec, launcher)
    assert compiled(tmp_path) == spec


@pytest.mark.parametrize("launcher", FORMS)
def test_a_component_alone_takes_a_form_as_it_is_and_in_a_pipeline(launcher, tmp_path):
    made = forms.pipeline_with_launcher(pytorch_job, launcher)

    @dsl.pipeline(name="around")
    def around():
        made(image="i")

    wanted = forms.with_launcher(compiled(tmp_path, pytorch_job), launcher)
    assert compiled(tmp_path, made) == wanted
    used = compiled(tmp_path, around)
    assert container(used, "pytorch-job") == container(wanted, "pytorch-job")


@pytest.mark.parametrize("launcher", FORMS)
def test_a_loaded_pipeline_takes_a_form_and_keeps_what_kubernetes_is_asked_for(launcher, tmp_path):
    @dsl.pipeline(name="tolerating")
    def tolerating():
        kubernetes.add_toleration(pytorch_job(image="i"), key="gpu", operator="Exists")

    compiler.Compiler().compile(tolerating, str(tmp_path / "a.yaml"))
    loaded = components.load_component_from_file(str(tmp_path / "a.yaml"))
    made = forms.pipeline_with_launcher(loaded, launcher)
    compiler.Compiler().compile(made, str(tmp_path / "b.yaml"))
    before, after = (
        list(yaml.safe_load_all((tmp_path / name).read_text())) for name in ("a.yaml", "b.yaml")
    )
    assert after == [forms.with_launcher(before[0], launcher), before[1]]


def test_an_image_that_the_author_gave_a_step_stays_where_any_image_will_do(tmp_path):
    @dsl.pipeline(name="mirrored")
    def mirrored(chosen: str = "mirror.corp/python:3.13"):
        pytorch_job(image="i").set_container_image("mirror.corp/python:3.12")
        metric_gate(metrics=pytorch_job(image="i").outputs["metrics"], minimum=0.5)
        pytorch_job(image="i").set_container_image(chosen)

    spec = compiled(tmp_path, mirrored)
    images = {e["container"]["image"] for e in spec["deploymentSpec"]["executors"].values()}
    assert len(images) == 3
    for launcher in ("configmap", "package", "package=x==1"):
        made = forms.with_launcher(forms.with_launcher(spec, "package"), launcher)
        for label, executor in made["deploymentSpec"]["executors"].items():
            before = spec["deploymentSpec"]["executors"][label]["container"]["image"]
            assert executor["container"]["image"] == before
    made = forms.with_launcher(spec, "image=launcher:1")["deploymentSpec"]["executors"]
    assert {executor["container"]["image"] for executor in made.values()} == {"launcher:1"}


def test_a_package_with_an_importer_or_no_command_passes():
    executors = {"exec-a": {"importer": {}}, "exec-b": {"container": {"image": "i"}}}
    spec = {"deploymentSpec": {"executors": executors}}
    assert forms.image_form(spec, "launcher") == spec


@pytest.mark.parametrize("launcher", ["", "image", "image=", "package=", "wheel=x", "configmap=x"])
def test_another_word_is_refused_with_those_that_there_are(spec, launcher):
    with pytest.raises(ValueError, match="write configmap, image=REF, package or package="):
        forms.with_launcher(spec, launcher)


@pytest.mark.parametrize(
    "requirement",
    [
        *("x'; reboot", "-r x", 'x "y"', "$(x)", "a\nb"),
        *("a;b", "a && touch z", "x @ http://h/x y", "https://h/x.whl y", "a==", "é"),
    ],
)
def test_a_requirement_that_a_shell_would_take_apart_or_pip_refuse_is_refused(spec, requirement):
    with pytest.raises(ValueError, match="without quotation marks"):
        forms.package_form(spec, requirement)


@pytest.mark.parametrize(
    "requirement",
    [
        "mine",
        "mine>=2,<3",
        "mine[x]==1.0",
        "x @ https://a/b.whl",
        "https://a/b.whl#sha256=0",
        "/wheels/b.whl",
        "./b.whl",
        "git+https://a/b.git@v1#subdirectory=c",
        "git+ssh://git@a/b.git",
        "x @ git+https://a/b.git",
    ],
)
def test_what_pip_takes_is_taken(spec, requirement):
    assert requirement in str(forms.package_form(spec, requirement))
