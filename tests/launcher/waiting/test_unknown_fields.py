"""A field that the cluster's kind does not have is named, and nothing is made or asked again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import ThreadedServer, start_in_thread
from harness.hands import connected

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.kubeflowjob.kinds import KUBEFLOW_KINDS
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.jobs.trainjob.kind import TRAIN_JOB
from kfp_pytorch.local.apiserver.registry import Registry, read_definitions
from kfp_pytorch.local.apiserver.store.api import Api

Object = dict[str, Any]
Serve = Callable[..., ThreadedServer]
JAX_JOB = KUBEFLOW_KINDS["JAXJob"]
CRDS = Path(__file__).resolve().parents[4] / "shared" / "crds"
CONTAINER = {"name": "jax", "image": "i"}
ROLE = {"replicas": 2, "template": {"spec": {"containers": [CONTAINER]}}}


@pytest.fixture(params=["published", "ours"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serve]:
    """Serves kinds by the schemas of their operators, or by the short ones."""
    started: list[ThreadedServer] = []
    if request.param == "published" and not CRDS.is_dir():
        pytest.skip(f"{CRDS} is not there")

    def start(kind: JobKind, without: str = "") -> ThreadedServer:
        given = read_definitions(CRDS) if request.param == "published" else []
        registry = Registry(given)
        resource = registry.of(kind.resource)
        if without:
            schema: Object = resource.schema["properties"]["spec"]["properties"]
            registry = Registry([*given, older(resource, schema, without)])
        started.append(start_in_thread(tmp_path, api=Api(registry)))
        return started[0]

    yield start
    for server in started:
        server.stop()


def older(resource: Any, fields: Object, without: str) -> Object:
    """The definition of a kind whose spec lacks a field."""
    kept = {name: part for name, part in copy.deepcopy(fields).items() if name != without}
    spec = {"type": "object", "properties": kept}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    kind = resource.kind
    return {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [{"name": kind.version, "served": True, "schema": schema}],
        },
    }


def refused(step: Any, server: ThreadedServer, kind: JobKind, **inputs: Any) -> str:
    own = {"image": ""} if "manifest" in inputs else {}
    run = step(on=connected(server), kind=kind, output_uri="s3://bucket", **own, **inputs)
    words: str = run.failed(InputError)
    assert "The server said: " in words
    assert len(run.error.short) < 200
    asked = [each for each in server.requests if each.path.endswith(kind.resource.plural)]
    assert len([each for each in asked if each.verb == "create"]) == 1
    assert server.call(server.api.list, kind.resource) == []
    return words


def manifest(role: Object = ROLE, **spec: Any) -> Object:
    made = {"jaxReplicaSpecs": {"Worker": role}, **spec}
    return {"apiVersion": "kubeflow.org/v1", "kind": "JAXJob", "spec": made}


CASES: list[tuple[JobKind, Object, str]] = [
    (
        PYTORCH_JOB,
        {"num_nodes": 2, "pod_template_patch": {"spec": {"tolerationz": []}}},
        "spec.tolerationz",
    ),
    (
        PYTORCH_JOB,
        {"affinity": {"nodeAffinity": {"requiredDuringScheduling": {}}}},
        "spec.affinity.nodeAffinity.requiredDuringScheduling",
    ),
    (
        KUBEFLOW_KINDS["JAXJob"],
        {"manifest": manifest(suspended=True)},
        "spec.suspended",
    ),
    (
        KUBEFLOW_KINDS["JAXJob"],
        {"manifest": manifest(runPolicy={"backofLimit": 1})},
        "spec.runPolicy.backofLimit",
    ),
    (
        KUBEFLOW_KINDS["JAXJob"],
        {
            "manifest": manifest(
                {"template": {"spec": {"containers": [CONTAINER | {"comand": []}]}}}
            ),
        },
        "spec.containers[0].comand",
    ),
    (
        TRAIN_JOB,
        {"env": {"A": {"secretKeyRef": {"name": "n", "key": "k", "optinal": True}}}},
        "spec.trainer.env[0].valueFrom.secretKeyRef.optinal",
    ),
]


@pytest.mark.parametrize(("kind", "inputs", "field"), CASES)
def test_a_typing_error_inside_an_input_is_named(
    step: Any, serve: Serve, kind: JobKind, inputs: Object, field: str
) -> None:
    words = refused(step, serve(kind), kind, **inputs)
    assert f"no field '{field}'. Look for a typing error" in words


def test_an_operator_that_is_too_old_for_what_every_job_has_is_told_of(
    step: Any, serve: Serve
) -> None:
    words = refused(step, serve(PYTORCH_JOB, without="nprocPerNode"), PYTORCH_JOB)
    assert "no field 'spec.nprocPerNode'. Training Operator 1.7 and later have it" in words


def test_the_form_of_another_trainer_is_told_of(step: Any, serve: Serve) -> None:
    form = {"patch_form": "podTemplateOverrides", "node_selector": {"a": "b"}}
    words = refused(step, serve(TRAIN_JOB), TRAIN_JOB, **form)
    assert "no field 'spec.podTemplateOverrides'. Each version of the Trainer has another" in words
