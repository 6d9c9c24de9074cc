"""A container's log over HTTP, from the files that the kubelet writes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.api_server import ThreadedServer

from kfp_pytorch.launcher.constants import POD

Object = dict[str, Any]
URL = "/api/v1/namespaces/default/pods/p/log"
RUNNING: Object = {"running": {"startedAt": "2025-01-01T00:00:00Z"}}
ENDED: Object = {"terminated": {"exitCode": 0, "reason": "Completed"}}


class Container:
    """A pod of one container, and a hand in the kubelet's place."""

    def __init__(self, server: ThreadedServer) -> None:
        self.server = server
        spec = {"nodeName": "n", "containers": [{"name": "c", "image": "x"}]}
        meta = {"name": "p", "namespace": "default"}
        pod = server.call(server.api.create, POD, {"metadata": meta, "spec": spec})
        self.folder = server.log_root / f"default_p_{pod['metadata']['uid']}" / "c"

    def set(self, state: Object, restarts: int = 0, last: Object | None = None) -> None:
        status = {"name": "c", "restartCount": restarts, "state": state, "lastState": last or {}}
        status |= {"ready": False, "image": "x", "imageID": ""}

        def change(pod: Object) -> None:
            pod["status"]["containerStatuses"] = [status]

        self.server.call(self.server.api.mutate, POD, "default", "p", change, "status")

    def write(self, *lines: str, restarts: int = 0) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{restarts}.log").open("a") as file:
            file.writelines(line + "\n" for line in lines)

    def get(self, **query: Any) -> httpx.Response:
        return httpx.get(self.server.url + URL, params=query)


def line(second: int, text: str, tag: str = "F") -> str:
    return f"2025-01-01T00:00:{second:02d}.123456789Z stdout {tag} {text}"


@pytest.fixture
def container(api_server: ThreadedServer) -> Container:
    return Container(api_server)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({}, "zero\none\ntwo\nthree\n"),
        ({"tailLines": 2}, "two\nthree\n"),
        ({"tailLines": 0}, ""),
        ({"limitBytes": 7}, "zero\non"),
        ({"sinceTime": "2025-01-01T00:00:02Z"}, "two\nthree\n"),
        ({"sinceTime": "2025-01-01T00:00:01Z", "tailLines": 1}, "three\n"),
        ({"sinceSeconds": 60}, ""),
        (
            {"timestamps": "true", "tailLines": 1},
            "2025-01-01T00:00:03.123456789Z three\n",
        ),
        ({"container": "c"}, "zero\none\ntwo\nthree\n"),
    ],
)
def test_as_much_of_a_log_comes_as_is_asked_for(
    container: Container, query: Object, text: str
) -> None:
    container.write(*(line(i, word) for i, word in enumerate(("zero", "one", "two", "three"))))
    container.set(RUNNING)
    answer = container.get(**query)
    assert (answer.status_code, answer.text) == (200, text)


def test_a_line_that_the_runtime_split_is_one_line(container: Container) -> None:
    container.write(line(0, "long ", "P"), line(0, "line"), line(1, "next"))
    container.set(ENDED)
    assert container.get().text == "long line\nnext\n"


def test_a_log_that_is_no_utf8_comes_byte_for_byte(container: Container) -> None:
    container.write(line(0, ""))
    path = container.folder / "0.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff\xfe\n")
    container.set(RUNNING)
    assert container.get().content == b"\xff\xfe\n"


def test_following_goes_on_until_the_container_ends(container: Container) -> None:
    container.write(line(0, "first"))
    container.set(RUNNING)
    read: list[str] = []
    seen = threading.Event()

    def follow() -> None:
        url = container.server.url + URL
        with httpx.stream("GET", url, params={"follow": "true"}) as answer:
            for text in answer.iter_lines():
                read.append(text)
                seen.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert seen.wait(60)
    container.write(line(1, "second"))
    container.write(line(2, "third"))
    container.set(ENDED)
    thread.join(60)
    assert read == ["first", "second", "third"]


def test_following_ends_when_the_pod_goes_or_its_container_restarts(container: Container) -> None:
    container.write(line(0, "first"))
    container.set(RUNNING)
    for end in ("restart", "delete"):
        got = threading.Event()

        def follow(event: threading.Event = got) -> None:
            url = container.server.url + URL
            with httpx.stream("GET", url, params={"follow": "true"}) as answer:
                for _ in answer.iter_lines():
                    event.set()

        thread = threading.Thread(target=follow)
        thread.start()
        assert got.wait(60)
        if end == "restart":
            container.write(line(9, "again"), restarts=1)
            container.set(RUNNING, restarts=1)
        else:
            api = container.server.api
            container.server.call(api.delete, POD, "default", "p", grace=0)
        thread.join(60)
        assert not thread.is_alive()


def test_the_log_before_the_restart_is_the_previous_one(container: Container) -> None:
    container.write(line(0, "before"))
    container.write(line(1, "after"), restarts=1)
    container.set(RUNNING, restarts=1, last=ENDED)
    assert container.get().text == "after\n"
    assert container.get(previous="true").text == "before\n"


def test_a_container_that_waits_to_restart_shows_its_last_run(container: Container) -> None:
    container.write(line(0, "Traceback"))
    container.set({"waiting": {"reason": "CrashLoopBackOff"}}, restarts=1, last=ENDED)
    assert container.get().text == "Traceback\n"
    assert container.get(previous="true").text == "Traceback\n"


@pytest.mark.parametrize(
    ("state", "query", "words"),
    [
        (
            {"waiting": {"reason": "ContainerCreating"}},
            {},
            'container "c" in pod "p" is waiting to start: ContainerCreating',
        ),
        (
            {"waiting": {"reason": "ImagePullBackOff"}},
            {},
            'container "c" in pod "p" is waiting to start: trying and failing to pull image',
        ),
        (RUNNING, {"previous": "true"}, 'previous terminated container "c" in pod "p" not found'),
        (RUNNING, {"container": "d"}, "container d is not valid for pod p"),
        (RUNNING, {"sinceTime": "yesterday"}, "RFC 3339"),
        (RUNNING, {"tailLines": "many"}, "tailLines"),
    ],
)
def test_a_log_that_there_is_not_is_refused_in_the_kubelets_words(
    container: Container, state: Object, query: Object, words: str
) -> None:
    container.set(state)
    answer = container.get(**query)
    assert answer.status_code == 400
    assert words in answer.json()["message"]


def test_of_two_containers_one_must_be_named(api_server: ThreadedServer, tmp_path: Path) -> None:
    containers = [{"name": name, "image": "x"} for name in ("a", "b")]
    pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": containers}}
    api_server.call(api_server.api.create, POD, pod)
    answer = httpx.get(api_server.url + URL)
    assert answer.status_code == 400
    words = "a container name must be specified for pod p, choose one of: [a b]"
    assert answer.json()["message"] == words
