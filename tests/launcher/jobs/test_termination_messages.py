from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_pytorch.launcher.jobs.termination_messages import Outcome, read_messages

GOOD = {
    "version": 1,
    "status": "succeeded",
    "metrics": {"accuracy": 0.991, "loss": 0.03},
    "world_size": 2,
    "export": {"path": "export", "sha256": "ab", "model": {"format": "kfp-pytorch"}},
    "curves": {"loss": [[0, 2.3], [26, 0.4]]},
    "samples": [{"instance": [[[0, 5]]], "prediction": 3}],
}


def failed(rank: int, time: float, message: str = "no") -> dict[str, Any]:
    error = {
        "rank": rank,
        "time": time,
        "type": "ValueError",
        "message": message,
        "traceback": "Traceback …",
    }
    return {"version": 1, "status": "failed", "error": error}


def pod(name: str, message: Any, *, code: int = 0, part: str = "state") -> dict[str, Any]:
    text = message if isinstance(message, str) else json.dumps(message)
    end = {"exitCode": code, "message": text}
    status = {"name": "pytorch", part: {"terminated": end}}
    return {"metadata": {"name": name}, "status": {"containerStatuses": [status]}}


def test_a_success_is_read_whole() -> None:
    success = read_messages([pod("j-master-0", GOOD)]).success
    assert success is not None
    assert success.metrics == {"accuracy": 0.991, "loss": 0.03}
    assert success.world_size == 2
    assert success.export is not None
    assert (success.export.path, success.export.model["format"]) == ("export", "kfp-pytorch")
    assert success.curves == {"loss": ((0.0, 2.3), (26.0, 0.4))}
    assert success.samples[0]["prediction"] == 3


def test_what_newer_messages_have_is_read() -> None:
    more = {"checkpoint": 260, "left_out": 12.0, "no_export": "too\nlarge"}
    more |= {"curves_left_out": 3, "not_finite": {"auc": "nan", "odd": "text", "none": None}}
    found = read_messages([pod("a", GOOD | more)])
    assert found.success is not None
    assert (found.success.checkpoint, found.success.left_out) == (260, 12)
    assert found.success.no_export == "too large"
    assert found.success.curves_left_out == 3
    assert found.success.metrics.keys() - GOOD["metrics"].keys() == {"auc"}
    assert found.checkpoint == 260
    assert read_messages([pod("a", failed(0, 1.0) | {"checkpoint": 0}, code=1)]).checkpoint == 0


@pytest.mark.parametrize("value", [None, -1, 0.5, True, "7", math.inf, [1]])
def test_what_is_no_count_is_none(value: Any) -> None:
    found = read_messages([pod("a", GOOD | {"checkpoint": value, "left_out": value})]).success
    assert found is not None
    assert (found.checkpoint, found.left_out) == (None, 0)


def test_the_fullest_success_counts_for_rank_0_need_not_be_on_the_first_node() -> None:
    short = {"version": 1, "status": "succeeded", "metrics": {}}
    outcome = read_messages([pod("j-master-0", short), pod("j-worker-0", GOOD)])
    assert outcome.success is not None
    assert outcome.success.pod == "j-worker-0"


def test_failures_are_sorted_by_the_time_of_their_record() -> None:
    pods = [
        pod("a", failed(0, 20.0, "second"), code=1),
        pod("b", failed(1, 10.5, "first"), code=1),
        pod("c", {"version": 1, "status": "failed", "error": {}}, code=1),
    ]
    failures = read_messages(pods).failures
    assert [f.message for f in failures] == ["first", "second", ""]
    assert failures[0].rank == 1


def test_the_message_of_the_state_before_a_restart_is_read() -> None:
    outcome = read_messages([pod("a", failed(3, 1.0), code=1, part="lastState")])
    assert outcome.failures[0].rank == 3


def test_a_success_of_a_container_that_failed_is_none() -> None:
    assert read_messages([pod("a", GOOD, code=1)]).success is None


@pytest.mark.parametrize(
    "message",
    [
        "",
        json.dumps(GOOD)[:-2],
        json.dumps(GOOD)[40:],
        "Traceback (most recent call last):\n  boom",
        "[1, 2]",
        "null",
        '{"version": 2, "status": "succeeded"}',
        '{"status": "succeeded"}',
        '{"other": "program"}',
        "[" * 4000,
        "9" * 5000,
        "\udcff\x00",
    ],
)
def test_what_is_not_ours_counts_as_no_message(message: str) -> None:
    assert read_messages([pod("a", message)]) == Outcome()


def test_fields_of_wrong_types_are_left_out_and_the_rest_is_kept() -> None:
    message = {
        "version": 1,
        "status": "succeeded",
        "metrics": {"accuracy": 0.5, "name": "x", "flag": True, "none": None},
        "world_size": "two",
        "export": {"path": 3},
        "curves": {"loss": [[0, 1], [1], "x", [2, None], [1, 0.5]], "bad": 7},
        "samples": [1, {"instance": 1}],
    }
    success = read_messages([pod("a", message)]).success
    assert success is not None
    assert success.metrics == {"accuracy": 0.5}
    assert (success.world_size, success.export, success.samples) == (0, None, ())
    assert success.curves == {"loss": ((0.0, 1.0), (1.0, 0.5))}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_whole_number_that_no_float_can_be_is_infinite(sign: int) -> None:
    huge = sign * 10**400
    message = {"metrics": {"steps": huge, "loss": 1}, "curves": {"loss": [[0, huge], [1, 1]]}}
    said = {"version": 1, "status": "succeeded", "world_size": huge, **message}
    success = read_messages([pod("a", said)]).success
    assert success is not None
    assert success.metrics == {"steps": sign * math.inf, "loss": 1.0}
    assert success.curves["loss"][0] == (0.0, sign * math.inf)
    assert success.world_size == 0


def packed(pixels: bytes, shape: list[Any]) -> dict[str, Any]:
    text = base64.b64encode(zlib.compress(pixels)).decode()
    return {"packed": text, "shape": shape, "prediction": 7}


def test_a_packed_sample_is_read_as_the_image_that_it_was() -> None:
    message = {"version": 1, "status": "succeeded", "samples": [packed(bytes(range(6)), [1, 2, 3])]}
    success = read_messages([pod("a", message)]).success
    assert success is not None
    assert success.samples == ({"instance": [[[0, 1, 2], [3, 4, 5]]], "prediction": 7},)


@pytest.mark.parametrize(
    "sample",
    [
        packed(b"abc", [2, 2]),
        packed(b"abc", [0]),
        packed(b"abc", []),
        packed(b"abc", ["x"]),
        packed(b"abc", [math.inf]),
        packed(bytes(2_000_000), [2_000_000]),
        {"packed": "no base64", "shape": [3], "prediction": 7},
        {"packed": "YWJj", "shape": [3], "prediction": 7},
        {"packed": 3, "shape": [3], "prediction": 7},
        {"packed": "YWJj", "prediction": 7},
    ],
)
def test_a_packed_sample_that_does_not_unpack_is_left_out(sample: dict[str, Any]) -> None:
    message = {"version": 1, "status": "succeeded", "samples": [sample]}
    success = read_messages([pod("a", message)]).success
    assert success is not None
    assert success.samples == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.fixed_dictionaries(
        {"version": st.just(1), "status": st.sampled_from(["succeeded", "failed", 3])},
        optional=dict.fromkeys(
            ("metrics", "world_size", "export", "curves", "samples", "error"), json_values
        ),
    )
)
def test_no_message_however_odd_raises(message: dict[str, Any]) -> None:
    read_messages([pod("a", message)])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(json_values)
def test_no_pod_however_odd_raises(status: Any) -> None:
    odd = {"containerStatuses": [{"state": {"terminated": status}, "lastState": status}]}
    read_messages([{"metadata": {"name": "a"}, "status": odd}, {"status": status}, {}])
