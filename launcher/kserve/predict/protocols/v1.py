"""Version 1 of the inference protocol: `instances` in, `predictions` out.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kfp_pytorch.launcher.kserve.predict.advice import advice
from kfp_pytorch.launcher.kserve.predict.exchange import Request, WrongAnswers, shown, words_of


def build(instances: Sequence[Any]) -> Request:
    """Make a request of instances."""
    return Request(json.dumps({"instances": list(instances)}).encode())


def read(body: bytes, count: int) -> list[Any]:
    """Return the prediction of each of `count` instances. Raises WrongAnswers."""
    try:
        predictions = json.loads(body)["predictions"]
    except (ValueError, TypeError, KeyError, RecursionError):
        said = words_of(body)
        raise WrongAnswers(f'The answer has no "predictions": {said}{advice(said)}') from None
    if not isinstance(predictions, list) or len(predictions) != count:
        raise WrongAnswers(f"{count} instances got {shown(predictions)} for predictions.")
    return predictions
