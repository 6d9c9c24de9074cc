"""What ML Metadata makes of an artifact's metadata.

https://github.com/kubeflow/pipelines/blob/2.16.0/backend/src/v2/metadata/converter.go
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Unrecordable(Exception):
    """The backend fails the step, though its program succeeded."""


def given_back(metadata: Mapping[str, Any], output: str) -> dict[str, Any]:
    """The metadata that the next step gets.

    Args:
        metadata: What a step's program wrote.
        output: The output's name, which becomes a part of it.

    Raises:
        Unrecordable: A value is null.
    """
    recorded = {key: _value(key, value) for key, value in metadata.items()}
    return {"display_name": output, "store_session_info": "{}"} | recorded


def _value(key: str, value: Any) -> Any:
    if value is None:
        raise Unrecordable(f"metadata {key!r}: unknown/unsupported value type NullValue")
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, Mapping):
        return {"struct": dict(value)}
    if isinstance(value, list):
        return {"list": value}
    return value
