"""Version 1 of the protocol: `instances` in, `predictions` out."""

from __future__ import annotations

from typing import Any

import orjson

from kfp_pytorch.serving import images
from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.export import Export
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.protocol.query import Query, top_of
from kfp_pytorch.serving.tensors import from_nested

# The one key of an instance that is a file.
FILE = "b64"


def read(body: bytes, export: Export) -> Query:
    """Reads a body. Raises BadRequest."""
    # Only where a number could be one are the numbers looked at one by one.
    booleans = b"true" in body or b"false" in body
    return from_payload(parsed(body), export, booleans)


def from_payload(payload: Any, export: Export, booleans: bool = True) -> Query:
    """Reads a body that was parsed. Raises BadRequest."""
    if not isinstance(payload, dict) or "instances" not in payload:
        raise BadRequest('the body must be a JSON object with "instances": [...]')
    top = top_of(payload.get("parameters"), export)
    instances = payload["instances"]
    if isinstance(instances, list) and instances and isinstance(instances[0], dict):
        return Query(images.from_files(_files(instances), export, "instances"), top)
    return Query([from_nested(instances, export.input, "instances", booleans)], top)


def parsed(body: bytes) -> Any:
    """The JSON of a body. Raises BadRequest."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"body: not JSON: {error}") from error


def write(answers: Answers, export: Export, query: Query) -> bytes:
    """The body of an answer."""
    return orjson.dumps(payload(answers, export, query), option=orjson.OPT_SERIALIZE_NUMPY)


def payload(answers: Answers, export: Export, query: Query) -> dict[str, Any]:
    """What the body of an answer says: the best class of each row, and under `top` the others."""
    if answers.classes is None or answers.scores is None:
        return {"predictions": list(answers.output)}
    labels = export.classes
    predictions = []
    rows = zip(answers.classes.tolist(), answers.scores.tolist(), strict=True)
    for classes, scores in rows:
        best = [
            {"class": index, "label": labels[index], "score": score}
            for index, score in zip(classes[: query.top], scores, strict=False)
        ]
        predictions.append(best[0] if query.top == 1 else best[0] | {"top": best})
    return {"predictions": predictions}


def _files(instances: list[Any]) -> list[str]:
    files = []
    for index, instance in enumerate(instances):
        fits = isinstance(instance, dict) and instance.keys() == {FILE}
        if not fits or not isinstance(instance[FILE], str):
            raise BadRequest(
                f'instances[{index}]: expected an object {{"{FILE}": "<base64 of an image>"}}, as '
                "the first instance is an object"
            )
        files.append(instance[FILE])
    return files
