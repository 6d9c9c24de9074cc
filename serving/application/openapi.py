"""The OpenAPI document: KServe's own, with the bodies that this model takes and gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from kfp_pytorch.serving import images
from kfp_pytorch.serving.export import Export, TensorSpec
from kfp_pytorch.serving.protocol import v2
from kfp_pytorch.serving.tensors import NUMPY_TYPES

Schema = dict[str, Any]
_V1, _V2 = "/v1/models/{model_name}", "/v2/models/{model_name}"
# Which the predictor answers, and never by loading or unloading anything.
_CLOSED = "/v2/repository/"
_ERROR: Schema = {"type": "object", "required": ["error"], "properties": {"error": {}}}


def document(base: Schema, export: Export, name: str) -> Schema:
    """Makes the document of a model from that of KServe's application."""
    made = copy.deepcopy(base)
    made["info"]["title"] = f"The predictor of the model {name}"
    paths = {path: each for path, each in made["paths"].items() if not path.startswith(_CLOSED)}
    made["paths"] = paths
    for operation in _operations(paths):
        operation["responses"].pop("422", None)
        operation["responses"]["default"] = _response("Refused, with the reason.", _ERROR)
        for parameter in operation.get("parameters", []):
            if parameter["name"] == "model_name":
                parameter["schema"] = {"type": "string", "enum": [name]}
    paths["/metrics"]["get"]["responses"]["200"]["content"] = {"text/plain": {}}
    _set_bodies(paths[f"{_V1}:predict"], _v1_request(export), "predictions")
    _set_bodies(paths[f"{_V1}:explain"], _explain_request(export), "explanations")
    _set_bodies(paths[f"{_V2}/infer"], _v2_request(export), "outputs")
    return made


def _operations(paths: Schema) -> Iterator[Schema]:
    for operations in paths.values():
        yield from operations.values()


def _set_bodies(path: Schema, request: Schema, answered: str) -> None:
    operation = path["post"]
    operation["requestBody"] = {
        "required": True,
        "content": {"application/json": {"schema": request}},
    }
    answer = {
        "type": "object",
        "required": [answered],
        "properties": {answered: {"type": "array"}},
    }
    operation["responses"]["200"] = _response("The answers, in order.", answer)


def _response(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _v1_request(export: Export, **parameters: Schema) -> Schema:
    instance = _nested(export.input, export.input.shape[1:])
    if images.takes_images(export):
        file = {"type": "string", "contentEncoding": "base64", "description": "a JPEG or PNG"}
        fields = {"type": "object", "required": ["b64"], "properties": {"b64": file}}
        instance = {"anyOf": [instance, fields | {"additionalProperties": False}]}
    return {
        "type": "object",
        "required": ["instances"],
        "properties": {
            "instances": {"type": "array", "minItems": 1, "items": instance},
            "parameters": {"type": "object", "properties": parameters or _top(export)},
        },
    }


def _explain_request(export: Export) -> Schema:
    return _v1_request(
        export,
        target={"type": "integer", "minimum": 0},
        steps={"type": "integer", "minimum": 1},
        baseline={"type": "number"},
    )


def _v2_request(export: Export) -> Schema:
    spec, types = export.input, [*NUMPY_TYPES]
    if images.takes_images(export):
        types.append("BYTES")
    length = len(spec.shape)
    size = {"type": "integer", "minimum": 1}
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": {"type": "string", "enum": [spec.name]},
            "shape": {"type": "array", "items": size, "minItems": 1, "maxItems": length},
            "datatype": {"type": "string", "enum": types},
            "data": {"type": "array"},
            "parameters": {"type": "object"},
        },
    }
    output = {"type": "string", "enum": [each.name for each in v2.outputs(export)]}
    asked = {"type": "object", "required": ["name"], "properties": {"name": output}}
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string"},
            "inputs": {"type": "array", "items": tensor, "minItems": 1, "maxItems": 1},
            "outputs": {"type": "array", "items": asked},
            "parameters": {"type": "object", "properties": _top(export)},
        },
    }


def _top(export: Export) -> Schema:
    most = len(export.classes)
    return {"top_k": {"type": "integer", "minimum": 1, "maximum": most}} if most else {}


def _nested(spec: TensorSpec, sizes: tuple[int, ...]) -> Schema:
    """Nested lists of these sizes."""
    if not sizes:
        return {"type": "number" if spec.datatype.startswith("FP") else "integer"}
    limits = {} if sizes[0] == -1 else {"maxItems": sizes[0]}
    least = max(1, sizes[0])
    return {"type": "array", "items": _nested(spec, sizes[1:]), "minItems": least, **limits}
