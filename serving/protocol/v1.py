"""Version 1 of the protocol: `instances` in, `predictions` out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from kfp_pytorch.serving import images
from kfp_pytorch.serving.errors import BadRequest
from kfp_pytorch.serving.explainer import MAX_STEPS, STEPS, Explanation, Wish
from kfp_pytorch.serving.export import Export
from kfp_pytorch.serving.predictor import Answers
from kfp_pytorch.serving.protocol.query import Query, top_of
from kfp_pytorch.serving.tensors import FLOAT_MAX, Array, from_nested

# The one key of an instance that is a file.
FILE = "b64"


def read(body: bytes, export: Export) -> Query:
    """Reads a body. Raises BadRequest."""
    # Only where a number could be one are the numbers looked at one by one.
    booleans = b"true" in body or b"false" in body
    return from_payload(parsed(body), export, booleans)


def from_payload(payload: Any, export: Export, booleans: bool = True) -> Query:
    """Reads a body that was parsed. Raises BadRequest."""
    top = top_of(_parameters(payload), export)
    return Query(_rows(payload["instances"], export, booleans), top)


def read_wish(body: bytes, export: Export) -> tuple[list[Array], Wish]:
    """Reads a body that asks for explanations: the rows, and how. Raises BadRequest."""
    payload = parsed(body)
    given = _parameters(payload)
    target = _number(given, "target", 0, None)
    steps = _number(given, "steps", 1, MAX_STEPS)
    baseline = given.get("baseline")
    if baseline is not None and not (
        type(baseline) in (int, float) and -FLOAT_MAX <= baseline <= FLOAT_MAX
    ):
        raise BadRequest(f"parameters.baseline: must be a number, not {baseline!r:.80}")
    wish = Wish(target, STEPS if steps is None else steps, baseline)
    return _rows(payload["instances"], export, booleans=True), wish


def _parameters(payload: Any) -> dict[str, Any]:
    """The parameters of a body that has instances. Raises BadRequest."""
    if not isinstance(payload, dict) or "instances" not in payload:
        raise BadRequest('the body must be a JSON object with "instances": [...]')
    parameters = payload.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadRequest("parameters: must be an object")
    return parameters or {}


def _number(given: dict[str, Any], name: str, least: int, most: int | None) -> int | None:
    """A whole number among the parameters; None where it is not there. Raises BadRequest."""
    value = given.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"from {least} on" if most is None else f"from {least} to {most}"
        raise BadRequest(f"parameters.{name}: must be a whole number {limits}, not {value!r:.80}")
    return value


def _rows(instances: Any, export: Export, booleans: bool) -> list[Array]:
    if isinstance(instances, list) and instances and isinstance(instances[0], dict):
        return images.from_files(_files(instances), export, "instances")
    return [from_nested(instances, export.input, "instances", booleans)]


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


def write_explanations(explanations: Sequence[Explanation], export: Export) -> bytes:
    """The body of an answer that explains."""
    found = []
    for each in explanations:
        number: dict[str, Any] = {"target": each.target, "output": each.score}
        if export.classes:
            label = export.classes[each.target]
            number = {"class": each.target, "label": label, "score": each.score}
        found.append(number | {"attributions": each.attributions, "delta": each.delta})
    return orjson.dumps({"explanations": found}, option=orjson.OPT_SERIALIZE_NUMPY)


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
