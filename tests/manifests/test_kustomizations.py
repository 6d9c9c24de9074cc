"""Each kustomization names files that are there, and renders objects that their APIs accept."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.kustomize import Object, build

from kfp_pytorch.local.apiserver.validation import models

ROOT = Path(__file__).resolve().parents[2] / "manifests"
FOLDERS = sorted(path.parent for path in ROOT.rglob("kustomization.yaml"))
# The kinds of the core that the official client has models of.
MODELS = {
    "ConfigMap": "V1ConfigMap",
    "PersistentVolumeClaim": "V1PersistentVolumeClaim",
    "ResourceQuota": "V1ResourceQuota",
    "ClusterRole": "V1ClusterRole",
    "RoleBinding": "V1RoleBinding",
    "NetworkPolicy": "V1NetworkPolicy",
}
# Custom kinds, by whether their CRDs' schemas are among those of the tests.
CUSTOM = {"ServingRuntime": "servingruntimes", "TrainingRuntime": "trainingruntimes"}
UNCHECKED = {"PodMonitor", "ClusterQueue", "LocalQueue", "ResourceFlavor"}
PLAIN = {"str": str, "int": int, "bool": bool, "object": object, "datetime": str}


@pytest.fixture(params=FOLDERS, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_every_file_of_the_folder_is_in_what_it_makes(folder: Path) -> None:
    made = build(folder)
    assert all(each["apiVersion"] and each["kind"] and each["metadata"]["name"] for each in made)
    names = [(each["kind"], each["metadata"]["name"]) for each in made]
    assert len(names) == len(set(names))
    text = (folder / "kustomization.yaml").read_text()
    files = {path.name for path in folder.iterdir() if path.is_file()} - {"kustomization.yaml"}
    assert {name for name in files if not re.search(rf"[ =\[]{name}\b", text)} == set()
    # The namespace is that of the command.
    assert not [each for each in made if "namespace" in each["metadata"]]


def test_each_folder_says_how_it_is_applied(folder: Path) -> None:
    namespace = "kubeflow" if folder.name == "standalone" else "NAMESPACE"
    # The launcher is too large for the annotation of a client's own apply.
    apply = "kubectl apply --server-side" if folder == ROOT else "kubectl apply"
    command = f"{apply} -n {namespace} -k {folder.relative_to(ROOT.parent)}"
    assert f"{command}\n" in (folder / "kustomization.yaml").read_text()


def test_the_first_kustomization_names_the_others() -> None:
    text = (ROOT / "kustomization.yaml").read_text().partition("apiVersion")[0]
    assert {each.name for each in FOLDERS[1:]} == set(re.findall("`(.*?)`", text))


def test_what_the_documents_say_to_apply_is_there() -> None:
    sources = [*ROOT.rglob("*.yaml"), ROOT.parent / "README.md", *ROOT.parent.glob("*/**/*.md")]
    texts = [path.read_text() for path in sources if ".venv" not in path.parts]
    named = {name for text in texts for name in re.findall(r"(?: -[kf] )(manifests[\w/.-]*)", text)}
    assert {"manifests", "manifests/standalone", "manifests/rbac.yaml"} <= named
    for name in named:
        path = ROOT.parent / name.rstrip(".")
        assert (path / "kustomization.yaml").is_file() or path.is_file(), name


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_renders_the_same(folder: Path) -> None:
    run = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert _by_name(yaml.load_all(run.stdout, yaml.CSafeLoader)) == _by_name(build(folder))


def _by_name(found: Any) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def test_the_schemas_accept_every_object(
    folder: Path, check_crd: Callable[[str, Object], None]
) -> None:
    for each in build(folder):
        kind = each["kind"]
        if kind in MODELS:
            assert list(_misfits(MODELS[kind], each, kind)) == []
        elif kind in CUSTOM:
            check_crd(CUSTOM[kind], each)
        else:
            assert kind in UNCHECKED


def test_a_field_that_a_kind_does_not_have_is_found() -> None:
    policy = {"spec": {"podSelector": {"matchLabel": {}}, "ingress": [{"ports": [{"port": {}}]}]}}
    assert list(_misfits("V1NetworkPolicy", policy, "")) == [".spec.podSelector.matchLabel"]
    quota = {"spec": {"hard": {"pods": 1}}}
    assert list(_misfits("V1ResourceQuota", quota, "")) == [".spec.hard.pods is no str"]


def _misfits(kind: str, value: Any, path: str) -> Iterator[str]:
    """Where a value does not fit the type that the client's models give it."""
    inner = re.fullmatch(r"(list|dict)(?:\[|\(str, )(.+)[\])]", kind)
    if inner and inner[1] == "list":
        for index, each in enumerate(value):
            yield from _misfits(inner[2], each, f"{path}[{index}]")
    elif inner:
        for key, each in value.items():
            yield from _misfits(inner[2], each, f"{path}.{key}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            yield f"{path} is no {kind}"
    else:
        known = models.fields(kind)
        for key, each in value.items():
            if key in known:
                yield from _misfits(known[key], each, f"{path}.{key}")
            else:
                yield f"{path}.{key}"


def test_the_local_api_server_takes_what_it_has_the_kinds_of(api_server: Any) -> None:
    import urllib3

    plurals = {
        "ConfigMap": "api/v1/namespaces/default/configmaps",
        "PersistentVolumeClaim": "api/v1/namespaces/default/persistentvolumeclaims",
        "ResourceQuota": "api/v1/namespaces/default/resourcequotas",
        "ServingRuntime": "apis/serving.kserve.io/v1alpha1/namespaces/default/servingruntimes",
    }
    for each in [*build(ROOT), *build(ROOT / "quota")]:
        if each["kind"] in plurals:
            url = f"{api_server.url}/{plurals[each['kind']]}?fieldValidation=Strict"
            answer = urllib3.request("POST", url, json=each)
            assert answer.status == 201, answer.data
