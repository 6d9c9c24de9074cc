"""What an exported model answers, without a server."""

from __future__ import annotations

import json
from typing import Any

from kfp_pytorch.serving.predictor import Answers, Predictor
from kfp_pytorch.serving.protocol import v1


def answer_v1(served: Predictor, payload: Any) -> dict[str, Any]:
    """The predictor's answer to the body of a V1 request; raises what the model raised."""
    query = v1.read(json.dumps(payload).encode(), served.export)
    (answers,) = served.answer(query.parts, query.top)
    if isinstance(answers, Answers):
        return json.loads(v1.write(answers, served.export, query))
    raise answers
