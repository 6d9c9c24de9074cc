from __future__ import annotations

import pytest

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.kserve.predict.target import Target, resolve

V1 = "http://h/v1/models/digits:predict"
V2 = "http://h/v2/models/digits/infer"


@pytest.mark.parametrize(
    ("url", "protocol", "name", "expected"),
    [
        (V1, "", "", Target("v1", V1, "digits")),
        (f"{V1}?x=1", "", "digits", Target("v1", f"{V1}?x=1", "digits")),
        ("http://h/any:predict", "", "", Target("v1", "http://h/any:predict", "")),
        (V2, "", "", Target("v2", V2, "digits")),
        (
            *("http://h/v2/models/d/versions/1/infer", "v2", "d"),
            Target("v2", "http://h/v2/models/d/versions/1/infer", "d"),
        ),
        (V1, "v2", "", Target("v2", V2, "digits")),
        (V2, "v1", "other", Target("v1", "http://h/v1/models/other:predict", "other")),
        ("http://h", "v1", "digits", Target("v1", V1, "digits")),
        ("http://h/", "v2", "digits", Target("v2", V2, "digits")),
        (
            *("https://gateway/serving/team/d/", "v1", "a b"),
            Target("v1", "https://gateway/serving/team/d/v1/models/a%20b:predict", "a b"),
        ),
        (V1, "grpc", "", Target("grpc", "http://h", "digits")),
        ("https://h:8081", "grpc", "digits", Target("grpc", "https://h:8081", "digits")),
        ("http://h/openai/v1/completions", "", "m", Target("openai", "http://h/openai/v1", "m")),
        ("http://h", "openai", "", Target("openai", "http://h/openai/v1", "")),
    ],
)
def test_protocol_url_and_name_say_each_other(
    url: str, protocol: str, name: str, expected: Target
) -> None:
    assert resolve(url, protocol, name) == expected


@pytest.mark.parametrize(
    ("url", "protocol", "name", "words"),
    [
        ("http://h", "", "d", "set protocol"),
        ("http://h", "v1", "", "model_name is not set"),
        ("http://h", "grpc", "", "model_name is not set"),
        (V1, "", "other", "model_name is 'other', but url is of the model 'digits'"),
        ("http://h/team/d", "grpc", "d", "gRPC knows no paths"),
        (f"{V1}?x=1", "v2", "", "no [?] and #"),
    ],
)
def test_what_does_not_say_enough_or_contradicts_itself_is_refused(
    url: str, protocol: str, name: str, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        resolve(url, protocol, name)
