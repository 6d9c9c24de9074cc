"""The API server of tests answers as KFP's did: its records are asked anew, one after another."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
import yaml
from harness.kfp_api.argo import Outcome
from harness.kfp_api.runs import Run
from harness.kfp_api.server import KfpServer

RECORDS = Path(__file__).resolve().parents[4] / "shared" / "records" / "kfp-api"
pytestmark = pytest.mark.skipif(not RECORDS.is_dir(), reason="the records are not here")

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
COLUMN = re.compile(r"line \d+:\d+")
MOST_TICKS = 12
# What that one server said besides: a plugin that it had, and what others had made before.
NOT_COMPARED = {"plugins_output", "total_size", "last_run_created_at"}


def record(name: str) -> list[dict[str, Any]]:
    lines = gzip.decompress((RECORDS / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines][1:]


class Replay:
    """Sends what was recorded to a server, with the ids that it gives in place of those there."""

    def __init__(self, server: KfpServer, package: dict[str, Any]) -> None:
        self.server, self.package = server, yaml.safe_dump(package)
        self.http = urllib3.PoolManager()
        self.ids: dict[str, str] = {}

    def send(self, request: dict[str, Any]) -> tuple[int, Any]:
        translated = UUID.sub(lambda found: self.ids.get(found[0], found[0]), json.dumps(request))
        wanted = json.loads(translated)
        fields = {name: str(value) for name, value in wanted.get("params", {}).items()}
        url = f"{self.server.url}/apis/v2beta1{wanted['path']}"
        if "file" in wanted:
            file = {"uploadfile": ("package.yaml", self.package)}
            query = urlencode(fields)
            answer = self.http.request("POST", f"{url}?{query}", fields=file)
        elif wanted["method"] == "GET":
            answer = self.http.request("GET", url, fields=fields)
        else:
            body = json.dumps(wanted["body"]) if "body" in wanted else None
            answer = self.http.request(wanted["method"], url, body=body)
        return answer.status, answer.json()

    def replay(self, entries: list[dict[str, Any]]) -> None:
        """Sends all in turn; a run is looked at until it is as it was in the record."""
        before = entries[0]["t"]
        for entry in entries:
            request = entry["request"]
            waited = request["method"] == "POST" and entry["t"] - before > 10
            if waited and (run := self.run(request)):
                self.server.store.advance(run)
            before = entry["t"]
            status, body = self.send(request)
            for _ in range(MOST_TICKS):
                if status == entry["status"] and self.matches(entry["body"], body):
                    break
                run = self.run(request)
                assert run, f"{request}: {entry['body']} {body}"
                self.server.store.advance(run)
                status, body = self.send(request)
            else:
                pytest.fail(f"never seen: {request} {entry['body']}")

    def run(self, request: dict[str, Any]) -> Run | None:
        """The run that a request is about."""
        key = UUID.search(request["path"].removeprefix("/runs/"))
        return self.server.store.runs.get(self.ids.get(key[0], "")) if key else None

    def matches(self, recorded: Any, answered: Any) -> bool:
        """Whether two answers are the same but for ids and times; if so, learns the ids."""
        before = dict(self.ids)
        if not self.same(recorded, answered):
            self.ids = before
            return False
        return True

    def same(self, recorded: Any, answered: Any) -> bool:
        both = (recorded, answered)
        if isinstance(recorded, dict) and isinstance(answered, dict):
            there, here = (_without(body, NOT_COMPARED) for body in both)
            return there.keys() == here.keys() and all(
                self.same(_in_order(there[key]), _in_order(here[key])) for key in there
            )
        if isinstance(recorded, list) and isinstance(answered, list):
            return len(recorded) == len(answered) and all(map(self.same, recorded, answered))
        if not isinstance(recorded, str) or not isinstance(answered, str):
            return bool(recorded == answered)
        if UUID.fullmatch(recorded) and UUID.fullmatch(answered):
            return self.ids.setdefault(recorded, answered) == answered
        if TIME.fullmatch(recorded) and TIME.fullmatch(answered):
            return recorded[:4] in ("0001", "1970") or answered[:4] not in ("0001", "1970")
        if recorded.startswith("eyJ") and answered.startswith("eyJ"):
            return all(
                "KeyFieldValue" in json.loads(base64.b64decode(t)) for t in (recorded, answered)
            )
        texts = [COLUMN.sub("line", text) for text in (recorded, answered)]
        return UUID.sub(lambda found: self.ids.get(found[0], found[0]), texts[0]) == texts[1]


def _without(body: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def _in_order(value: Any) -> Any:
    """Tasks in an order that no id decides, and without those that are for the cache."""
    if not isinstance(value, list) or not value or "task_id" not in value[0]:
        return value
    tasks = [_without(task, {"task_id"}) for task in value if "display_name" in task]
    for task in tasks:
        if "child_tasks" in task:
            task["child_tasks"].sort(key=lambda child: child["pod_name"])
    return sorted(tasks, key=lambda task: json.dumps([task.get(name) for name in _OF_A_TASK]))


_OF_A_TASK = ("display_name", "state", "child_tasks")


@pytest.fixture
def server() -> Iterator[KfpServer]:
    started = KfpServer(advances=0)
    yield started
    started.stop()


def spec_in(entries: list[dict[str, Any]], path: str) -> dict[str, Any]:
    body = next(e["body"] for e in entries if e["request"]["path"].endswith(path))
    found: dict[str, Any] = body.get("pipeline_versions", [body])[0]["pipeline_spec"]
    return found


def test_pipelines_names_taken_twice_unknown_fields_and_a_run_to_its_end(server):
    entries = record("pipelines")
    # What that server had before: other experiments, and seventeen pipelines.
    entries = [e for e in entries if "page_size" not in e["request"].get("params", {})]
    server.store.workflow_names = lambda _: "hello-lab-8qgf7"
    asking = Replay(server, spec_in(entries, "/upload_version"))
    asking.replay([*entries, *record("run")])
    assert server.run().state == "SUCCEEDED"


def test_a_failed_run_its_retry_a_terminated_one_and_recurring_runs(server):
    failed, recurring = record("run-failed"), record("recurring")
    server.store.workflow_names = lambda _: "slow-then-broken-5nghs"
    server.store.outcomes = {"slow": Outcome(ticks=1), "broken": Outcome("FAILED")}
    asking = Replay(server, spec_in(failed, "/versions"))
    asking.replay(failed)
    server.store.outcomes = {"slow": Outcome(ticks=100)}
    server.store.workflow_names = lambda _: "slow-then-broken-xqcmp"
    asking.replay(record("run-terminated"))
    # The lists have what others made; and the run that was due is in one.
    lists = [e for e in recurring if "page_size" in e["request"].get("params", {})]
    asking.replay([entry for entry in recurring if entry not in lists])
    assert [entry["request"]["path"] for entry in lists] == ["/recurringruns", "/runs"]
    assert lists[0]["body"].keys() == {"recurringRuns", "total_size", "next_page_token"}
