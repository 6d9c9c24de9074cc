from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import kubeconfig, write_kubeconfig
from harness.faults.actions import Answer, Delay, LostAnswer, Refuse, TokenExpired, Trickle
from harness.faults.watches import InsertEvent

from kfp_pytorch.launcher.constants import CLAIM, POD, PYTORCHJOB, Kind
from kfp_pytorch.launcher.errors import CannotObserve
from kfp_pytorch.launcher.kubernetes.api_errors import (
    AlreadyExists,
    Conflict,
    Expired,
    KindAbsent,
    NotFound,
    Refused,
    StreamIdle,
    Transient,
    Unauthorized,
    Unreachable,
)
from kfp_pytorch.launcher.kubernetes.client import connect
from kfp_pytorch.launcher.kubernetes.credentials import Credentials, load
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy

CLAIMS = "*/persistentvolumeclaims*"
TEMPLATE = {"spec": {"containers": [{"name": "pytorch", "image": "a"}]}}
JOB = {
    "metadata": {"name": "j", "namespace": "default"},
    "spec": {"pytorchReplicaSpecs": {"Master": {"template": TEMPLATE}}},
}


def claim(name: str, **labels: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def test_objects_are_made_read_changed_and_deleted(kube: Any) -> None:
    made = kube.create(CLAIM, claim("one", a="1"))
    assert kube.get(CLAIM, "one") == made
    fresh = kube.replace(CLAIM, made | {"metadata": made["metadata"] | {"labels": {"b": "2"}}})
    assert kube.get(CLAIM, "one") == fresh
    assert fresh["metadata"]["labels"] == {"b": "2"}
    with pytest.raises(Conflict):
        kube.replace(CLAIM, made | {"metadata": made["metadata"] | {"labels": {}}})
    with pytest.raises(AlreadyExists):
        kube.create(CLAIM, claim("one"))
    with pytest.raises(Conflict):
        kube.delete(CLAIM, "one", uid="of-another", propagation="Background")
    kube.delete(CLAIM, "one", uid=made["metadata"]["uid"], propagation="Background")
    with pytest.raises(NotFound):
        kube.get(CLAIM, "one")


def test_a_kind_that_the_server_does_not_know_is_no_missing_object(kube: Any) -> None:
    unknown = Kind("example.com", "v1", "Thing", "things")
    with pytest.raises(KindAbsent, match=r"things\.example\.com"):
        kube.get(unknown, "a")
    with pytest.raises(KindAbsent):
        kube.list(unknown)


def test_an_invalid_object_is_refused_in_the_servers_words(kube: Any) -> None:
    with pytest.raises(Refused, match="Bad_Name"):
        kube.create(CLAIM, claim("Bad_Name"))


def test_a_long_list_comes_whole_and_by_selector(
    kube: Any, hands: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfp_pytorch.launcher.kubernetes.client.PAGE", 10)
    for number in range(25):
        kube.create(CLAIM, claim(f"c{number:02}", odd=str(number % 2)))
    found = kube.list(CLAIM, labels="odd=1")
    assert len(found) == 12
    assert {obj["kind"] for obj in found} == {"PersistentVolumeClaim"}
    assert hands.count("list", "claims") == 2
    hands.fault(Answer(410), "list", CLAIMS, skip=1)
    assert len(kube.list(CLAIM)) == 26


def test_a_list_of_nothing_may_be_written_as_null(kube: Any, hands: Any) -> None:
    body = {"kind": "PersistentVolumeClaimList", "metadata": {"resourceVersion": "7"}}
    for nothing in ({"items": None}, {}):
        hands.fault(Answer(200, body=json.dumps(body | nothing)), "list", CLAIMS)
        assert kube.list_at(CLAIM) == ([], "7")
    hands.fault(Answer(200, body='{"kind": "Status", "items": null}'), "list", CLAIMS)
    assert kube.list(CLAIM), "that was no list"


def test_a_list_that_expires_again_and_again_ends(kube: Any, hands: Any) -> None:
    hands.fault(Answer(410), "list", CLAIMS, times=None)
    with pytest.raises(Expired):
        kube.list(CLAIM)


def test_a_watch_shows_changes_and_bookmarks_and_then_silence(kube: Any, hands: Any) -> None:
    _, version = kube.list_at(CLAIM)
    with_bookmarks = kube.watch(CLAIM, resource_version=version, idle_timeout=30)
    kube.create(CLAIM, claim("new"))
    kinds = []
    for kind, obj in with_bookmarks:
        kinds.append(kind)
        if kind == "BOOKMARK":
            assert obj["metadata"]["resourceVersion"]
        if {"ADDED", "BOOKMARK"} <= set(kinds):
            break
    with_bookmarks.close()
    with pytest.raises(StreamIdle):
        list(kube.watch(CLAIM, resource_version=version, name="none", idle_timeout=0.05))


def test_a_watch_ends_with_its_lifetime(kube: Any) -> None:
    started = time.monotonic()
    list(kube.watch(CLAIM, idle_timeout=30, lifetime=1))
    assert time.monotonic() - started < 30


def test_a_410_is_expired_in_each_of_its_forms(kube: Any, hands: Any) -> None:
    for said in (
        {"kind": "Status", "code": 410, "reason": "Expired", "metadata": {}},
        {"kind": "Status", "code": 410, "reason": "Gone", "message": "too old"},
        {"kind": "Status", "reason": "Gone"},
    ):
        hands.fault(InsertEvent("ERROR", said, ends=True), "watch", CLAIMS)
        with pytest.raises(Expired):
            list(kube.watch(CLAIM))
    hands.fault(Answer(410), "watch", CLAIMS)
    with pytest.raises(Expired):
        kube.watch(CLAIM)


@pytest.mark.parametrize("code", [401, 403])
def test_access_that_a_stream_says_is_refused_is_for_the_next_request_to_tell(
    kube: Any, hands: Any, code: int
) -> None:
    said = {"kind": "Status", "code": code, "message": 'User "x" cannot watch resource "pods"'}
    hands.fault(InsertEvent("ERROR", said, ends=True), "watch", CLAIMS)
    with pytest.raises(Transient):
        list(kube.watch(CLAIM))


def test_a_stream_that_another_thread_closes_ends_without_an_error(kube: Any) -> None:
    stream = kube.watch(CLAIM, idle_timeout=30)
    next(iter(stream))
    threading.Timer(0.1, stream.close).start()
    assert all(kind in ("ADDED", "BOOKMARK") for kind, _ in stream)


def test_a_rotated_token_is_read_from_disk_on_401(hands: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    config = kubeconfig(hands.server.url, token_file=str(token))
    environ = {"KUBECONFIG": str(write_kubeconfig(tmp_path / "rotating", config))}
    kube = connect(
        load_credentials=lambda: load(environ), policy=RetryPolicy(first_contact=0.5, pause=0.05)
    )
    hands.fault(TokenExpired(), "get", CLAIMS, times=None)
    with pytest.raises(Unauthorized):
        kube.get(CLAIM, "kfp-pytorch")
    token.write_text("new")
    assert kube.get(CLAIM, "kfp-pytorch")["kind"] == "PersistentVolumeClaim"


def test_credentials_that_are_being_written_are_read_once_more(hands: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    config = kubeconfig(hands.server.url, token_file=str(token))
    environ = {"KUBECONFIG": str(write_kubeconfig(tmp_path / "rotating", config))}
    tries = []

    def read() -> Credentials:
        tries.append(environ)
        if len(tries) == 2:
            token.unlink()
        if len(tries) == 3:
            token.write_text("new")
        return load(environ)

    kube = connect(load_credentials=read)
    hands.fault(TokenExpired(), "get", CLAIMS, times=None)
    assert kube.get(CLAIM, "kfp-pytorch")["kind"] == "PersistentVolumeClaim"
    assert len(tries) == 3


def test_a_401_that_passes_is_no_error(kube: Any, hands: Any) -> None:
    hands.fault(Answer(401), "get", CLAIMS, times=1)
    assert kube.get(CLAIM, "kfp-pytorch")


def test_retry_after_is_kept_to(hands: Any, kube: Any) -> None:
    patient = kube.with_policy(RetryPolicy(pause=0.01))
    hands.fault(Answer(429, retry_after=1), "get", CLAIMS)
    patient.get(CLAIM, "kfp-pytorch")
    first, second = (r for r in hands.server.requests if r.verb == "get")
    assert second.time - first.time >= 1.0


@pytest.mark.parametrize("asked", ["soon", ["1"], {"seconds": 1}, "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_wait_that_cannot_be_read_is_none(kube: Any, hands: Any, asked: Any) -> None:
    said = {"kind": "Status", "details": {"retryAfterSeconds": asked}}
    hands.fault(Answer(429, body=json.dumps(said)), "get", CLAIMS)
    assert kube.get(CLAIM, "kfp-pytorch")


def test_being_blind_is_told_before_it_is_given_up(hands: Any) -> None:
    told: list[str] = []
    environ = {"KUBECONFIG": str(hands.server.kubeconfig)}
    policy = RetryPolicy(unavailability_budget=2.0, first_contact=2.0, pause=0.05, report_after=0.1)
    kube = connect(notify=told.append, policy=policy, load_credentials=lambda: load(environ))
    hands.fault(Answer(503), "get", CLAIMS, times=None)
    with pytest.raises(CannotObserve, match="503"):
        kube.get(CLAIM, "kfp-pytorch")
    assert len(told) == 1
    assert "trying for up to" in told[0]


def test_an_answer_slower_than_the_limit_is_asked_for_again(kube: Any, hands: Any) -> None:
    hasty = kube.with_policy(RetryPolicy(read=0.5, pause=0.01))
    hands.fault(Delay(30.0), "get", CLAIMS)
    assert hasty.get(CLAIM, "kfp-pytorch")
    assert hands.count("get", "claims") >= 2


def test_a_delete_that_was_done_but_not_answered_is_no_missing_object(
    kube: Any, hands: Any
) -> None:
    kube.create(CLAIM, claim("one"))
    hands.fault(LostAnswer("reset"), "delete", CLAIMS)
    kube.delete(CLAIM, "one", propagation="Background")
    with pytest.raises(NotFound):
        kube.delete(CLAIM, "one", propagation="Background")


def test_an_answer_that_trickles_in_is_asked_for_again(kube: Any, hands: Any) -> None:
    made = kube.create(CLAIM, claim("one"))
    hands.fault(Trickle(), "get", CLAIMS)
    limited = kube.with_policy(RetryPolicy(first_contact=30, read=0.5))
    assert limited.get(CLAIM, "one") == made
    assert hands.count("get", "claims/one") == 2


def test_a_server_that_is_away_for_a_while_is_found_again(kube: Any, hands: Any) -> None:
    kube.get(CLAIM, "kfp-pytorch")
    hands.fault(Refuse(0.3), "get", CLAIMS)
    assert kube.get(CLAIM, "kfp-pytorch")


def test_the_time_is_the_servers(hands: Any, kube: Any) -> None:
    kube.get(CLAIM, "kfp-pytorch")
    assert abs(kube.now().timestamp() - time.time()) < 30


def test_logs_are_read_by_tail_time_and_run(kube: Any, hands: Any) -> None:
    hands.server.call(hands.server.api.create, PYTORCHJOB, JOB)
    pod = hands.running("j")
    name = pod["metadata"]["name"]
    hands.log(pod, [f"2025-11-27T12:00:0{n}Z line {n}" for n in range(5)])
    assert kube.read_log(name, "pytorch", tail_lines=2) == "line 3\nline 4\n"
    since = kube.read_log(name, "pytorch", since="2025-11-27T12:00:04Z", timestamps=True)
    assert since == "2025-11-27T12:00:04Z line 4\n"
    with pytest.raises(Refused, match="previous terminated container"):
        kube.read_log(name, "pytorch", previous=True)
    with pytest.raises(NotFound):
        kube.read_log("no-such-pod", "pytorch")
    assert kube.list(POD, labels="training.kubeflow.org/job-name=j")


def test_the_end_of_a_log_whose_lines_are_as_long_as_a_runtime_lets_them_be_is_not_cut_off(
    kube: Any, hands: Any
) -> None:
    """So are a progress bar's that is drawn over and over."""
    hands.server.call(hands.server.api.create, PYTORCHJOB, JOB)
    pod = hands.running("j")
    lines = [f"2025-11-27T12:00:00Z {'x' * 16_000}"] * 99
    hands.log(pod, [*lines, "2025-11-27T12:00:01Z ValueError: bad batch"])
    read = kube.read_log(pod["metadata"]["name"], "pytorch", tail_lines=100)
    assert read.endswith("\nValueError: bad batch\n")


def test_a_followed_log_gives_lines_as_they_come(kube: Any, hands: Any) -> None:
    hands.server.call(hands.server.api.create, PYTORCHJOB, JOB)
    pod = hands.running("j")
    stream = kube.stream_log(pod["metadata"]["name"], "pytorch", idle_timeout=5)
    lines = iter(stream)
    for number in range(3):
        hands.log(pod, [f"2025-11-27T12:00:0{number}Z é{number}"])
        assert next(lines) == f"2025-11-27T12:00:0{number}Z é{number}"
    hands.ended("j", 0)
    assert list(lines) == []


def test_an_event_may_hold_an_object_of_any_size_that_there_is(kube: Any, hands: Any) -> None:
    """Two templates with long arguments are more than a stream's buffer."""
    big = JOB | {"metadata": JOB["metadata"] | {"annotations": {"note": "x" * 200_000}}}
    stream = kube.watch(PYTORCHJOB, idle_timeout=20)
    hands.server.call(hands.server.api.create, PYTORCHJOB, big)
    kind, obj = next((k, o) for k, o in stream if k != "BOOKMARK")
    assert (kind, obj["metadata"]["annotations"]) == ("ADDED", big["metadata"]["annotations"])
    stream.close()


@pytest.mark.parametrize(
    "body",
    ["[]", "null", '{"kind": "Status"}', '{"metadata": ["a"]}', '{"items": [null]}', "[" * 100_000],
    ids=lambda body: body[:20],
)
def test_what_is_no_object_is_no_answer(kube: Any, hands: Any, body: str) -> None:
    hands.fault(Answer(200, body=body), "get", CLAIMS, times=2)
    hands.fault(Answer(200, body=body), "list", CLAIMS, times=2)
    assert kube.get(CLAIM, "kfp-pytorch")
    assert kube.list(CLAIM)


def test_what_is_nested_without_end_is_no_event(kube: Any, hands: Any) -> None:
    hands.fault(Answer(200, body="[" * 100_000), "watch", CLAIMS)
    with pytest.raises(Unreachable, match="not an event"):
        list(kube.watch(CLAIM, idle_timeout=20))


@pytest.mark.parametrize("code", [301, 302, 307])
def test_a_proxy_that_redirects_is_no_answer_of_the_server(
    kube: Any, hands: Any, code: int
) -> None:
    hands.fault(Answer(code, body="<html>log in first</html>"), "get", CLAIMS, times=2)
    assert kube.get(CLAIM, "kfp-pytorch")


def test_credentials_that_one_connection_read_afresh_serve_its_siblings_too(
    hands: Any, tmp_path: Path
) -> None:
    """A signal's DELETE must not begin with a 401 because the token was rotated an hour ago."""
    token = tmp_path / "token"
    token.write_text("old")
    config = kubeconfig(hands.server.url, token_file=str(token))
    environ = {"KUBECONFIG": str(write_kubeconfig(tmp_path / "rotating", config))}
    kube = connect(load_credentials=lambda: load(environ))
    sibling = kube.with_policy(RetryPolicy())
    sibling.get(CLAIM, "kfp-pytorch")
    hands.fault(TokenExpired(), "get", CLAIMS, times=None)
    token.write_text("new")
    kube.get(CLAIM, "kfp-pytorch")
    refused = sum(r.status == 401 for r in hands.server.requests)
    sibling.get(CLAIM, "kfp-pytorch")
    assert sum(r.status == 401 for r in hands.server.requests) == refused == 1
