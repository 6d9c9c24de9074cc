"""Faults in the server: each is seen by a client as what it stands for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpcore
import httpx
import pytest
from harness.api_server import ThreadedServer
from harness.faults.actions import (
    Action,
    Answer,
    Delay,
    Forbidden,
    LostAnswer,
    Refuse,
    Reset,
    Stall,
    TokenExpired,
)
from harness.faults.plan import Fault
from harness.faults.watches import (
    DuplicateEvents,
    EndWatch,
    InsertEvent,
    ReorderEvents,
    SilentWatch,
    WithholdLast,
    expired_watch,
)
from harness.held import Clock

from kfp_pytorch.launcher.constants import CONFIG_MAP

# No test of this file takes so many seconds.
SLOW = 60.0
PATH = "/api/v1/namespaces/default/configmaps"

Object = dict[str, Any]


@pytest.fixture
def client(api_server: ThreadedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=api_server.url, timeout=60) as made:
        yield made


def create(client: httpx.Client, name: str = "a") -> httpx.Response:
    return client.post(PATH, json={"metadata": {"name": name}})


def names(client: httpx.Client) -> list[str]:
    return [item["metadata"]["name"] for item in client.get(PATH).json()["items"]]


def watched(client: httpx.Client, namespace: str) -> list[str]:
    """What the events of a watch are about; `broken` for a line that cannot be read."""
    found = []
    query = {"watch": "1", "timeoutSeconds": "1"}
    with client.stream("GET", PATH.replace("default", namespace), params=query) as answer:
        for line in answer.iter_lines():
            try:
                obj = json.loads(line)["object"]
                found.append(obj.get("metadata", {}).get("name") or obj["kind"])
            except ValueError:
                found.append("broken")
    return found


@pytest.mark.parametrize(
    ("action", "code", "reason"),
    [
        (Answer(401), 401, "Unauthorized"),
        (Answer(404), 404, "NotFound"),
        (Answer(409), 409, "Conflict"),
        (Answer(410), 410, "Expired"),
        (Answer(410, "Gone"), 410, "Gone"),
        (Answer(429, retry_after=2), 429, "TooManyRequests"),
        (Answer(500), 500, "InternalError"),
        (Answer(503), 503, "ServiceUnavailable"),
        (Answer(504), 504, "Timeout"),
    ],
)
def test_an_error_is_answered_once_and_then_the_server_is_well(
    api_server: ThreadedServer, client: httpx.Client, action: Answer, code: int, reason: str
) -> None:
    api_server.faults.add(Fault(action))
    answer = client.get(PATH)
    assert (answer.status_code, answer.json()["reason"]) == (code, reason)
    assert answer.json()["code"] == code
    assert answer.headers.get("retry-after") == (str(action.retry_after or "") or None)
    assert client.get(PATH).status_code == 200
    assert [request.status for request in api_server.requests] == [code, 200]


def test_a_proxys_page_is_no_status(api_server: ThreadedServer, client: httpx.Client) -> None:
    api_server.faults.add(Fault(Answer(502, body="<html>Bad Gateway</html>")))
    assert client.get(PATH).text == "<html>Bad Gateway</html>"


def test_403_names_verb_resource_namespace_and_account(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    path = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
    api_server.faults.add(Fault(Forbidden("system:serviceaccount:team:runner"), times=3))
    message = client.post(path, json={}).json()["message"]
    assert message == (
        'pytorchjobs.kubeflow.org is forbidden: User "system:serviceaccount:team:runner" cannot '
        'create resource "pytorchjobs" in API group "kubeflow.org" in the namespace "team"'
    )
    log = client.get("/api/v1/namespaces/team/pods/p/log").json()["message"]
    assert log.startswith('pods "p" is forbidden')
    assert 'cannot get resource "pods/log" in API group ""' in log
    assert client.get("/api/v1/nodes").json()["message"].endswith("at the cluster scope")


def test_faults_strike_the_verb_path_and_count_that_they_name(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    fault = Fault(Answer(500), verb="list", path="*/configmaps", skip=1, times=2)
    api_server.faults.add(fault)
    assert create(client).status_code == 201
    assert client.get("/api/v1/namespaces/default/secrets").status_code == 200
    assert [client.get(PATH).status_code for _ in range(4)] == [200, 500, 500, 200]
    assert client.get(f"{PATH}/a").status_code == 200
    assert api_server.faults.struck() == 2


def test_a_fault_begins_and_ends_at_its_time(
    api_server: ThreadedServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("harness.faults.plan.time", clock)
    api_server.faults.add(Fault(Answer(500), times=None, after_s=100.0, for_s=200.0))
    found = []
    for clock.ahead in (0.0, 99.0 - SLOW, 100.0, 299.0 - SLOW, 300.0):
        found.append(client.get(PATH).status_code)
    assert found == [200, 200, 500, 500, 200]


def test_a_token_that_expired_is_refused_until_another_comes(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    api_server.faults.add(Fault(TokenExpired(), times=None))
    old, new = ({"authorization": f"Bearer {word}"} for word in ("old", "new"))
    assert [client.get(PATH, headers=h).status_code for h in (old, old, new)] == [401, 401, 200]


def test_a_server_that_went_away_refuses_and_comes_back_with_all_it_had(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    create(client)
    api_server.faults.add(Fault(Refuse(2.0)))
    with pytest.raises(httpx.TransportError):
        client.get(PATH)
    while (said := asked(client)) != "refused":
        # On a busy machine it may be back already.
        if said == "answered":
            api_server.faults.add(Fault(Refuse(2.0)))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            assert names(client) == ["a"]
            break
        except httpx.TransportError:
            time.sleep(0.01)
    else:
        pytest.fail("the server did not come back")


def asked(client: httpx.Client) -> str:
    try:
        client.get(PATH)
    except httpx.ConnectError:
        return "refused"
    except httpx.TransportError:
        return "broken"
    return "answered"


@pytest.mark.parametrize("after", [None, 0, 20])
def test_a_connection_is_reset_before_or_within_the_answer(
    api_server: ThreadedServer, client: httpx.Client, after: int | None
) -> None:
    create(client)
    api_server.faults.add(Fault(Reset(after)))
    with pytest.raises(httpx.TransportError):
        client.get(PATH)
    assert names(client) == ["a"]
    # With no part of an answer, the server did nothing.
    assert api_server.requests[-2].status == (0 if after is None else 200)


@pytest.mark.parametrize("after", [None, 5])
def test_a_server_that_says_no_more_is_waited_for(
    api_server: ThreadedServer, client: httpx.Client, after: int | None
) -> None:
    api_server.faults.add(Fault(Stall(after)))
    with pytest.raises(httpx.ReadTimeout):
        client.get(PATH, timeout=0.3)
    assert client.get(PATH).status_code == 200


@pytest.mark.parametrize("then", ["stall", "reset", "timeout"])
def test_a_create_can_succeed_though_the_client_is_told_otherwise(
    api_server: ThreadedServer, client: httpx.Client, then: str
) -> None:
    api_server.faults.add(Fault(LostAnswer(then), verb="create"))
    if then == "timeout":
        assert create(client).status_code == 504
    else:
        with pytest.raises((httpx.ReadTimeout, httpx.TransportError)):
            client.post(PATH, json={"metadata": {"name": "a"}}, timeout=0.3)
    assert create(client).json()["reason"] == "AlreadyExists"


def test_a_slow_server_answers_in_the_end(api_server: ThreadedServer, client: httpx.Client) -> None:
    api_server.faults.add(Fault(Delay(0.2)))
    with pytest.raises(httpx.ReadTimeout):
        client.get(PATH, timeout=0.05)
    api_server.faults.add(Fault(Delay(0.05)))
    assert client.get(PATH).status_code == 200


def test_a_servers_clock_can_be_another(api_server: ThreadedServer, client: httpx.Client) -> None:
    api_server.set_clock(3600)
    created = create(client).json()["metadata"]["creationTimestamp"]
    ahead = datetime.fromisoformat(created) - datetime.now(UTC)
    assert timedelta(minutes=59) < ahead < timedelta(minutes=61)


LYING_WATCHES: dict[str, tuple[Action, list[str]]] = {
    "ends-at-once": (EndWatch(), []),
    "ends-early": (EndWatch(2), ["a", "b"]),
    "is-cut": (EndWatch(1, cut=True), ["a", "broken"]),
    "duplicates": (DuplicateEvents(), ["a", "a", "b", "b", "c", "c"]),
    "reorders": (ReorderEvents(), ["b", "a"]),
    "withholds": (WithholdLast(), ["a", "b"]),
    "foreign": (InsertEvent("MODIFIED", {"kind": "Secret"}, 1), ["a", "Secret", "b", "c"]),
    "unknown": (InsertEvent("SURPRISE", {"kind": "New"}), ["New", "a", "b", "c"]),
    "bookmark": (InsertEvent("BOOKMARK", {"kind": "ConfigMap"}, 3), ["a", "b", "c", "ConfigMap"]),
    "expired-at-once": (expired_watch(), ["Status"]),
    "expired": (expired_watch(2), ["a", "b", "Status"]),
    "honest": (Delay(0), ["a", "b", "c"]),
}


def test_watches_lie_end_or_repeat_themselves(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    """Each in a namespace of its own, all at once: a watch takes a second to end."""
    for case, (action, _) in LYING_WATCHES.items():
        client.post("/api/v1/namespaces", json={"metadata": {"name": case}})
        for name in ("a", "b", "c"):
            path = PATH.replace("default", case)
            assert client.post(path, json={"metadata": {"name": name}}).status_code == 201
        api_server.faults.add(Fault(action, verb="watch", path=f"*/{case}/*"))
    with ThreadPoolExecutor(len(LYING_WATCHES)) as pool:
        watches = pool.map(partial(watched, client), LYING_WATCHES)
        found = dict(zip(LYING_WATCHES, watches, strict=True))
    assert found == {case: seen for case, (_, seen) in LYING_WATCHES.items()}


def test_an_expired_watch_carries_a_status_of_410(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    api_server.faults.add(Fault(expired_watch(reason="Gone"), verb="watch"))
    event = json.loads(client.get(PATH, params={"watch": "1"}).text)
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Gone")


def test_a_silent_watch_is_open_and_says_nothing(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    create(client)
    api_server.faults.add(Fault(SilentWatch(), verb="watch"))
    with client.stream("GET", PATH, params={"watch": "1"}) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpcore.ReadTimeout):
            answer.extensions["network_stream"].read(1, timeout=0.3)


def test_every_request_is_counted_with_its_verb(
    api_server: ThreadedServer, client: httpx.Client
) -> None:
    create(client)
    client.get(f"{PATH}/a")
    client.get(PATH)
    client.get(PATH, params={"watch": "true", "timeoutSeconds": 1})
    client.put(f"{PATH}/a", json={"metadata": {"name": "a"}})
    client.patch(f"{PATH}/a", json={}, headers={"content-type": "application/merge-patch+json"})
    client.delete(f"{PATH}/a")
    client.delete(PATH)
    client.get("/api/v1/namespaces/default")
    found = [(request.verb, request.status) for request in api_server.requests]
    assert found == [
        ("create", 201),
        ("get", 200),
        ("list", 200),
        ("watch", 200),
        ("update", 200),
        ("patch", 200),
        ("delete", 200),
        ("deletecollection", 200),
        ("get", 200),
    ]
    assert api_server.call(api_server.api.list, CONFIG_MAP) == []
