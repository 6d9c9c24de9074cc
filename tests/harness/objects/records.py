"""What a real cluster did, from ../shared/records, in a form that can be compared."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

Object = dict[str, Any]

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "records"


def events(record: str) -> list[Object]:
    """The events of a record such as `pytorchjob/ok2`, without its first line.

    Args:
        record: Its folder and name.
    """
    with gzip.open(FOLDER / f"{record}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in list(lines)[1:]]


def states(found: Iterable[Object], kind: str, name: str) -> list[Object]:
    """The states of one object in a record, in order.

    Args:
        found: What `events` returned.
        kind: Its kind.
        name: Its name.
    """
    return [
        event["object"]
        for event in found
        if event["kind"] == kind
        and event["type"] in ("ADDED", "MODIFIED", "DELETED")
        and event["object"]["metadata"]["name"] == name
    ]


def conditions(objects: Iterable[Object]) -> list[str]:
    """The conditions of an object's states as `Type=Status(Reason)`, each once until it changes."""
    return _each_once(
        " ".join(
            f"{each['type']}={each['status']}({each.get('reason', '')})"
            for each in (obj.get("status") or {}).get("conditions") or []
        )
        for obj in objects
    )


def pod_states(objects: Iterable[Object], container: str) -> list[str]:
    """A pod's states as `Phase state restarts`, each once until it changes.

    Args:
        objects: The states of the pods of one name.
        container: The container whose state counts.
    """
    return _each_once(_pod_state(obj, container) for obj in objects)


def _pod_state(pod: Object, container: str) -> str:
    status = pod["status"]
    statuses = status.get("containerStatuses") or []
    found = next((each for each in statuses if each["name"] == container), None)
    if found is None:
        return f"{status['phase']} -"
    ((state, details),) = found["state"].items()
    reason = details.get("reason", "")
    detail = f"{reason}:{details['exitCode']}" if "exitCode" in details else reason
    deleting = " deleting" if "deletionTimestamp" in pod["metadata"] else ""
    shown = f"{state}({detail})" if detail else state
    return f"{status['phase']} {shown} {found['restartCount']}{deleting}"


def _each_once(found: Iterable[str]) -> list[str]:
    return [each for each, _ in groupby(found)]
