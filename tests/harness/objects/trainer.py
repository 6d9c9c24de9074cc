"""The definition of TrainJobs, as each version of the Trainer has it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.jobs.trainjob.forms import CURRENT, FORMS

Object = dict[str, Any]

FILE = Path(__file__).resolve().parents[4] / "shared" / "crds" / "trainjobs.json"
_POD = "[] trainingRuntimeSpec template spec replicatedJobs [] template spec template"


def definition(field: str = CURRENT.field) -> Object:
    """The CustomResourceDefinition of a Trainer that changes pods by this field.

    Of older ones only the parts differ that a TrainJob of this project has.
    """
    found: Object = json.loads(FILE.read_text())
    if field != CURRENT.field:
        _make_older(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"], field)
    return found


def schema(field: str = CURRENT.field) -> Object:
    """The schema in that definition."""
    found: Object = definition(field)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def _make_older(whole: Object, field: str) -> None:
    form, spec = FORMS[field], whole["properties"]["spec"]["properties"]
    template = spec["runtimePatches"]
    for step in _POD.split():
        template = template["items"] if step == "[]" else template["properties"][step]
    item = copy.deepcopy(template)
    pod = item["properties"]["spec"]
    containers = pod["properties"]["containers"]["items"]
    _keep(pod, form.pod)
    _keep(containers, form.container)
    item = item if form.metadata else pod
    target = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    item["properties"]["targetJobs"] = {"type": "array", "items": target}
    spec[field] = {"type": "array", "items": item}
    _keep(whole["properties"]["spec"], form.job)


def _keep(schema: Object, fields: frozenset[str]) -> None:
    for name in schema["properties"].keys() - fields:
        del schema["properties"][name]
