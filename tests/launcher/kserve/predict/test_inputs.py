"""The inputs of `kserve_predict`."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict.forms import Known
from kfp_pytorch.launcher.kserve.predict.inputs import PredictInputs, parse_inputs


def parsed(**inputs: Any) -> PredictInputs:
    given = {"url": "http://h/v1/models/d:predict"} | inputs
    return parse_inputs(**given)


def test_requests_are_given_one_by_one_or_several_at_once() -> None:
    one = {"instance": [1, 2], "prediction": 3}
    several = {"instances": [[1], [2]], "predictions": [0.5, 1.5]}
    assert parsed(requests=[one, several]).requests == (
        Known([1, 2], 3),
        Known([1], 0.5),
        Known([2], 1.5),
    )
    assert parsed().requests == ()


def test_a_header_that_cannot_be_sent_is_not_quoted_for_it_may_be_a_token() -> None:
    with pytest.raises(InputError, match="Authorization") as raised:
        parsed(headers={"Authorization": "Bearer abc123\nabc"})
    assert "abc123" not in raised.value.message


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"url": ""}, "must begin with http:// or https://"),
        ({"url": "digits:8080"}, "must begin with http:// or https://"),
        ({"requests": [5]}, r"requests\[0\] must be"),
        ({"requests": [{"prediction": 1}]}, r"it has \['prediction'\]"),
        ({"requests": [{"instance": 1, "expected": 1}]}, r"it has \['expected', 'instance'\]"),
        ({"requests": [{"instances": [1], "predictions": []}]}, "1 instances but 0 predictions"),
        ({"requests": [{"instances": [], "predictions": []}]}, "has no instances"),
        ({"requests": [{"instances": 1, "predictions": 1}]}, "must be lists"),
        ({"ready_timeout": -1}, "ready_timeout is -1"),
        ({"url": "http://a b/v1/models/x:predict"}, "is no URL"),
        ({"url": "http://h:port/v1/models/x:predict"}, "is no URL"),
        ({"url": f"http://{'a' * 64}/v1/models/x:predict"}, "is no URL"),
        ({"url": "http://[::1/v1/models/x:predict"}, "is no URL"),
        ({"url": "http://me:secret@h/v1/models/x:predict"}, "url holds a user's name; [^:]*$"),
        ({"headers": {"A": None}}, r"headers\['A'\] is null"),
        ({"headers": {"A": "1\nB: 2"}}, r"headers\['A'\] is .* one line"),
        ({"headers": {"A": "✨"}}, r"headers\['A'\] is .* Latin-1"),
        ({"headers": {"a b": "1"}}, "'a b', which is no header's name"),
        ({"headers": {"Content-Length": 5}}, "may not have 'Content-Length'"),
    ],
)
def test_inputs_that_cannot_work_are_refused_by_name(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parsed(**inputs)
