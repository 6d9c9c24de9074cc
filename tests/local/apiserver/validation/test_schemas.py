"""What schemas do to custom resources: those of a folder, and the short ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import (
    INFERENCE_SERVICE,
    JAXJOB,
    MPIJOB,
    PADDLEJOB,
    PYTORCHJOB,
    TFJOB,
    TRAINJOB,
    XGBOOSTJOB,
    Kind,
)
from kfp_pytorch.local.apiserver.registry import Registry, read_definitions
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.apiserver.validation import models
from kfp_pytorch.local.apiserver.validation.admission import unknown_fields

Object = dict[str, Any]
CRDS = Path(__file__).resolve().parents[5] / "shared" / "crds"
THING = Kind("example.org", "v1", "Thing", "things")
MODEL = "x-kfp-pytorch-model"
# Of pods, later than Kubernetes 1.34.
NEWER = {"schedulingGroup"}
EXPERIMENT = Kind("kubeflow.org", "v1beta1", "Experiment", "experiments")


def definition(**properties: Object) -> Object:
    spec = {"type": "object", "properties": properties, "required": ["size"]}
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "Thing", "plural": "things", "singular": "thing"}
    return {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
        "spec": {"group": "example.org", "names": names, "versions": [version]},
    }


PROPERTIES: Object = {
    "size": {"type": "integer", "minimum": 1, "maximum": 9},
    "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
    "name": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]*$"},
    "amount": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}]},
    "items": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
    "maybe": {"type": "string", "nullable": True},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "fixed": {
        "type": "string",
        "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "field is immutable"}],
    },
    "choice": {"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}]},
}


@pytest.fixture
def things() -> Api:
    return Api(Registry([definition(**PROPERTIES)]))


def thing(**spec: Any) -> Object:
    return {"metadata": {"name": "t", "namespace": "default"}, "spec": {"size": 1, **spec}}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"size": 0}, "Invalid value: 0: spec.size in body should be greater than or equal to 1"),
        ({"size": 10}, "Invalid value: 10: spec.size in body should be less than or equal to 9"),
        ({"size": None}, "Required value"),
        ({"colour": "green"}, 'Unsupported value: "green": supported values: "red", "blue"'),
        ({"name": "a"}, 'Invalid value: "a": spec.name in body should be at least 2 chars long'),
        ({"name": "abcde"}, "spec.name in body should be at most 4 chars long"),
        ({"name": "A1"}, "spec.name in body should match '^[a-z]*$'"),
        ({"amount": 1.5}, 'spec.amount in body must be of type integer,string: "number"'),
        ({"items": []}, "Invalid value: 0: spec.items in body should have at least 1 items"),
        ({"items": ["a"] * 3}, "Invalid value: 3: spec.items in body should have at most 2 items"),
        ({"labels": {"a": 1}}, 'spec.labels.a in body must be of type string: "integer"'),
        ({"choice": {"b": 1}}, '"spec.choice" must validate one and only one schema (oneOf)'),
    ],
)
def test_a_wrong_value_is_refused_in_a_real_servers_words(
    things: Api, spec: Object, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        things.create(THING, thing(**spec))
    assert message in caught.value.message


def test_what_is_right_is_kept_pruned_and_defaulted(things: Api) -> None:
    sent = thing(
        name="ab", amount="50%", items=["a"], maybe=None, free={"x": {"y": None}}, unknown=1
    )
    spec = things.create(THING, sent)["spec"]
    assert spec == {
        "size": 1,
        "name": "ab",
        "amount": "50%",
        "items": ["a"],
        "maybe": None,
        "free": {"x": {"y": None}},
        "colour": "red",
    }
    assert things.create(
        THING, {**thing(size=1.0), "metadata": {**thing()["metadata"], "name": "u"}}
    )


def test_a_field_that_is_immutable_keeps_its_value(things: Api) -> None:
    things.create(THING, thing(fixed="a"))
    with pytest.raises(ApiError, match=r"spec.fixed: Invalid value: \"b\": field is immutable"):
        things.mutate(THING, "default", "t", lambda o: o["spec"].update(fixed="b"))
    things.mutate(THING, "default", "t", lambda o: o["spec"].update(size=2))


def test_a_type_of_a_folder_takes_the_place_of_our_own(tmp_path: Path) -> None:
    (tmp_path / "things.json").write_text(json.dumps(definition(**PROPERTIES)))
    api = Api(Registry(read_definitions(tmp_path)))
    assert api.create(THING, thing())["spec"]["colour"] == "red"


@pytest.mark.parametrize("content", [None, "{", "[]", '{"kind": "Pod"}'])
def test_a_folder_of_something_else_is_refused_and_named(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match="CustomResourceDefinition") as caught:
        read_definitions(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        (PYTORCHJOB, {"pytorchReplicaSpecs": {"Master": {"replicas": "1"}}}, "replicas"),
        (PYTORCHJOB, {"pytorchReplicaSpecs": {"Master": {"template": {"spec": {}}}}}, "containers"),
        (TRAINJOB, {"trainer": {}}, "spec.runtimeRef"),
        (INFERENCE_SERVICE, {"predictor": []}, "spec.predictor"),
    ],
)
def test_without_definitions_short_schemas_refuse_the_coarsest_errors(
    kind: Kind, spec: Object, field: str
) -> None:
    api = Api()
    with pytest.raises(ApiError) as caught:
        api.create(kind, {"metadata": {"name": "n", "namespace": "default"}, "spec": spec})
    assert caught.value.code == 422
    assert field in caught.value.message


def test_short_schemas_have_the_fields_of_a_job_and_none_besides() -> None:
    resource = Registry([]).of(PYTORCHJOB)
    container = {"name": "pytorch", "comand": [], "resources": {"limits": {"x/y": 1}, "limit": {}}}
    pod = {"containers": [container], "tolerationz": [], "affinity": {"podAffinity": {"x": 1}}}
    template = {"metadata": {"labels": {"a": "b"}, "uid": "1"}, "spec": pod}
    spec = {
        "pytorchReplicaSpecs": {"Master": {"template": template, "other": {"x": 1}}},
        "runPolicy": {"schedulingPolicy": {"minMember": 2}},
        "more": [1],
    }
    meta = {"name": "n", "namespace": "default", "label": {}}
    made = {"metadata": meta, "spec": spec}
    at = "spec.pytorchReplicaSpecs.Master"
    assert set(unknown_fields(resource, made)) == {
        "metadata.label",
        f"{at}.other",
        f"{at}.template.metadata.uid",
        f"{at}.template.spec.tolerationz",
        f"{at}.template.spec.affinity.podAffinity.x",
        f"{at}.template.spec.containers[0].comand",
        f"{at}.template.spec.containers[0].resources.limit",
        "spec.runPolicy.schedulingPolicy.minMember",
        "spec.more",
    }
    stored = Api().create(PYTORCHJOB, made)
    assert unknown_fields(resource, stored) == []
    (kept,) = stored["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert kept == {"name": "pytorch", "resources": {"limits": {"x/y": 1}}}


def test_kinds_that_are_not_ours_to_check_take_every_field() -> None:
    meta, spec = {"name": "n", "namespace": "default"}, {"more": [1]}
    assert Api().create(EXPERIMENT, {"metadata": meta, "spec": spec})["spec"] == spec


def own_fields(schema: Object) -> Iterator[str]:
    """The paths of all fields of a schema of ours, but for those of models and free objects."""
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from own_fields(inner)
    for name, part in schema.get("properties", {}).items():
        yield name
        yield from (f"{name}.{path}" for path in own_fields(part))


def below(schema: Object, path: str) -> Object:
    for name in path.split("."):
        while name not in schema.get("properties", {}):
            schema = schema.get("items") or schema["additionalProperties"]
        schema = schema["properties"][name]
    return schema


@pytest.mark.skipif(not CRDS.exists(), reason=f"{CRDS} is not there")
@pytest.mark.parametrize(
    "kind", [PYTORCHJOB, TFJOB, MPIJOB, XGBOOSTJOB, JAXJOB, PADDLEJOB, TRAINJOB, INFERENCE_SERVICE]
)
def test_short_schemas_have_the_fields_of_the_published_ones(kind: Kind) -> None:
    (definition,) = json.loads((CRDS / f"{kind.plural}.json").read_text())["spec"]["versions"]
    published = definition["schema"]["openAPIV3Schema"]["properties"]["spec"]
    ours = Registry([]).of(kind).schema["properties"]["spec"]
    paths = list(own_fields(ours))
    types = {path: below(ours, path)["type"] for path in paths}
    assert types == {path: below(published, path).get("type") for path in paths}
    for path in ["", *paths]:
        part = below(ours, path) if path else ours
        theirs = below(published, path) if path else published
        closed = part.get("type") == "object" and part.get("properties")
        if closed and "additionalProperties" not in part:
            of_model = models.fields(part[MODEL]) if MODEL in part else {}
            missing = theirs["properties"].keys() - part["properties"].keys() - of_model.keys()
            assert missing <= NEWER, path


@pytest.mark.skipif(not CRDS.exists(), reason=f"{CRDS} is not there")
def test_every_published_definition_can_be_served() -> None:
    api = Api(Registry(read_definitions(CRDS)))
    template = {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    meta = {"name": "j", "namespace": "default"}
    spec = {"pytorchReplicaSpecs": {"Master": {"template": template, "typo": 1}}}
    made = api.create(PYTORCHJOB, {"metadata": meta, "spec": spec})
    assert "typo" not in made["spec"]["pytorchReplicaSpecs"]["Master"]
    for resource in api.registry:
        if resource.custom:
            with pytest.raises(ApiError) as caught:
                api.create(resource.kind, {"metadata": {"name": "A"}, "spec": 1})
            assert caught.value.code in (404, 422)
