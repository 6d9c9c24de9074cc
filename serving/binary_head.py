"""The JSON at the start of a V2 request whose tensors follow as bytes."""

# `import kserve` parses sys.argv: nothing but the predictor's own process may import this.
from __future__ import annotations

from typing import Any

from kserve.constants.constants import INFERENCE_CONTENT_LENGTH_HEADER as HEAD_LENGTH
from kserve.protocol.rest.v2_datamodels import InferenceRequest, RequestInput
from pydantic import BaseModel, Field, ValidationError

from kfp_pytorch.serving.tensors import BadRequest

JSON = "application/json"


class BinaryParameters(BaseModel, extra="allow"):
    """The parameters of an input whose numbers follow the JSON."""

    # What is larger, the JSON reader of KServe makes a float.
    binary_data_size: int | None = Field(default=None, ge=0, lt=2**53)


class BinaryInput(RequestInput):  # type: ignore[misc]
    """An input whose numbers may follow the JSON."""

    parameters: BinaryParameters | None = None
    data: list[Any] | None = None


class BinaryRequest(InferenceRequest):  # type: ignore[misc]
    """The JSON at the start of a binary request."""

    inputs: list[BinaryInput]


def check_head(body: bytes, headers: dict[str, str]) -> None:
    """Checks a body of bytes, whose head KServe reads without checks.

    The names of the headers are in small letters. Raises BadRequest.
    """
    if HEAD_LENGTH not in headers:
        found = headers.get("content-type") or "none"
        raise BadRequest(
            f'body: must be a JSON object with "inputs" and the content-type {JSON} (found: '
            f"{found}), or binary tensors with the header {HEAD_LENGTH}"
        )
    length = headers[HEAD_LENGTH].strip()
    if not length.isdecimal() or int(length) > len(body):
        raise BadRequest(
            f"{HEAD_LENGTH}: {length!r} is not the length of the JSON that a body of {len(body)} "
            "bytes starts with"
        )
    try:
        head = BinaryRequest.model_validate_json(body[: int(length)], strict=True)
    except ValidationError as error:
        reason = error.errors()[0]
        place = ".".join(map(str, ("body", *reason["loc"])))
        raise BadRequest(f"{place}: {reason['msg']}") from error
    stated = sum(each.parameters.binary_data_size or 0 for each in head.inputs if each.parameters)
    follow = len(body) - int(length)
    if stated != follow:
        raise BadRequest(f"inputs: binary_data_size states {stated} bytes, and {follow} follow")
