"""Replays what a real API server was asked, and compares what it answered."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.api_server import ThreadedServer, start_in_thread

from kfp_pytorch.local.apiserver.registry import Registry, read_definitions
from kfp_pytorch.local.apiserver.store.api import Api

SHARED = Path(__file__).resolve().parents[5] / "shared"
TRANSCRIPT = SHARED / "apiserver" / "transcript.json"
VOLATILE = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "deletionGracePeriodSeconds",
    "namespace",
    "selfLink",
)
# How much faster than the real one this replay runs: the pauses let controllers act.
PACE = 5
GENERATED = re.compile(r"g-[a-z0-9]{5}\b")

pytestmark = pytest.mark.skipif(not TRANSCRIPT.exists(), reason=f"{TRANSCRIPT} is not there")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ThreadedServer]:
    wanted = ("pytorchjobs.kubeflow.org", "inferenceservices.serving.kserve.io")
    definitions = [d for d in read_definitions(SHARED / "crds") if d["metadata"]["name"] in wanted]
    started = start_in_thread(tmp_path, api=Api(Registry(definitions)), namespace_delay_s=5 / PACE)
    yield started
    started.stop()


def stripped(obj: dict[str, Any]) -> dict[str, Any]:
    """The object without what differs from one run to the next."""
    meta = {key: value for key, value in obj["metadata"].items() if key not in VOLATILE}
    if obj["kind"] == "Pod":
        meta.pop("generation", None)  # which the version of the transcript does not have
    if "deletionTimestamp" in meta:
        meta["deletionTimestamp"] = "<time>"
    result = {**obj, "metadata": meta}
    return json.loads(GENERATED.sub("g-xxxxx", json.dumps(result)))


def described(response: httpx.Response, wanted: dict[str, Any]) -> dict[str, Any]:
    """A response in the transcript's own form, with as much as the transcript tells."""
    found: dict[str, Any] = {"status": response.status_code}
    if isinstance(wanted.get("body"), list):
        found["body"] = [json.loads(line) for line in response.text.splitlines()]
        return found
    if "body" in wanted:
        found["body"] = response.text
        return found
    obj = response.json()
    if "object" in wanted:
        found["object"] = stripped(obj)
    elif obj["kind"] == "Status":
        found |= {key: obj[key] for key in ("kind", "reason") if key in obj}
        causes = obj.get("details", {}).get("causes", [])
        if "causes" in wanted:
            found["causes"] = [{key: c[key] for key in ("reason", "field")} for c in causes]
        if "message" in wanted and worded_alike(wanted["message"]):
            found["message"] = obj["message"][: len(wanted["message"])]
    elif "items" in wanted:
        found["kind"] = obj["kind"]
        found["items"] = [
            GENERATED.sub("g-xxxxx", item["metadata"]["name"]) for item in obj["items"]
        ]
        found["has_continue"] = bool(obj["metadata"].get("continue"))
    return found


def worded_alike(message: str) -> bool:
    """Whether the words are the API's own, and not those of its JSON and base64 decoders."""
    return not re.search("ReadString|json parse error: (invalid|unexp)|continue token", message)


def normal(wanted: dict[str, Any]) -> dict[str, Any]:
    result = json.loads(GENERATED.sub("g-xxxxx", json.dumps(wanted)))
    if "object" in result:
        result["object"] = stripped(result["object"])
    if "message" in result and not worded_alike(result["message"]):
        del result["message"]
    return result


def without_numbers(events: Any) -> Any:
    return json.loads(re.sub(r"\((\d+)\)", "(n)", json.dumps(events)))


def test_every_request_of_the_transcript_is_answered_as_a_real_server_answered(
    server: ThreadedServer,
) -> None:
    uids: dict[str, str] = {}
    differences = []
    with httpx.Client(base_url=server.url) as client:
        for entry in json.loads(TRANSCRIPT.read_text()):
            if "sleep" in entry:
                time.sleep(entry["sleep"] / PACE)
                continue
            body = entry["body"]
            text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
            for old, new in uids.items():
                text = text.replace(old, new)
            if entry["name"] == "own child":
                owner = client.get("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/a").json()
                old = body["metadata"]["ownerReferences"][0]["uid"]
                uids[old] = owner["metadata"]["uid"]
                text = text.replace(old, uids[old])
            response = client.request(
                entry["method"],
                entry["path"],
                content=text.encode(),
                headers={"content-type": entry["content_type"]},
            )
            wanted = json.dumps(normal(entry["response"]))
            for old, new in uids.items():
                wanted = wanted.replace(old, new)
            found = described(response, entry["response"])
            if without_numbers(found) != without_numbers(json.loads(wanted)):
                differences.append(f"{entry['name']}:\n  found  {found}\n  wanted {wanted}")
    assert not differences, "\n".join(differences)
