"""The cluster's process: how it starts, is found, is refused and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from kfp_pytorch.local import lifecycle
from kfp_pytorch.local.apiserver.registry import read_definitions
from kfp_pytorch.local.lifecycle import ClusterError, ClusterHandle
from kfp_pytorch.local.processes import guard

SLEEP = ["python", "-I", "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "root"
    yield folder
    lifecycle.stop(folder)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterHandle]:
    """A cluster for tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("cluster")
    yield lifecycle.start_detached(folder)
    lifecycle.stop(folder)


def pods_api(cluster: ClusterHandle) -> Any:
    return client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))


def start_pod(cluster: ClusterHandle, name: str = "p", command: list[str] = SLEEP) -> int:
    """Starts a pod; returns the process id of its guard once it runs."""
    api = pods_api(cluster)
    container = {"name": "main", "image": "python", "command": command}
    body = {"metadata": {"name": name}, "spec": {"containers": [container]}}
    api.create_namespaced_pod("default", body)

    def running() -> Any:
        status = api.read_namespaced_pod(name, "default").status
        return status.phase == "Running" and status.container_statuses[0]

    return int(eventually(running).container_id.rpartition("/")[2])


def eventually(what: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_detached_cluster_is_found_used_and_stopped_with_all_its_pods(root: Path) -> None:
    started = lifecycle.start_detached(root)
    assert lifecycle.status(root) == started
    assert started.kubeconfig.stat().st_mode & 0o777 == 0o600
    assert json.loads((root / "cluster.json").read_text())["pid"] == started.pid
    api = pods_api(started)
    namespaces = {each.metadata.name for each in api.list_namespace().items}
    assert {"default", "kubeflow", "kube-system"} <= namespaces
    (claim,) = api.list_namespaced_persistent_volume_claim("default").items
    assert claim.metadata.name == "kfp-pytorch"
    assert (root / "claims" / "default" / "kfp-pytorch").is_dir()
    pod = start_pod(started)
    assert lifecycle.stop(root)
    assert gone(pod)
    assert gone(started.pid)
    assert lifecycle.status(root) is None
    assert not (root / "cluster.json").exists()
    assert not lifecycle.stop(root)


def test_nobody_without_the_kubeconfig_is_let_in(cluster: ClusterHandle) -> None:
    stranger = client.CoreV1Api(client.ApiClient(client.Configuration(host=cluster.url)))
    with pytest.raises(client.ApiException) as caught:
        stranger.list_namespace()
    assert caught.value.status == 401
    assert cluster.token not in repr(cluster)


def test_a_second_cluster_on_the_same_folder_is_refused(cluster: ClusterHandle) -> None:
    with pytest.raises(ClusterError) as caught:
        lifecycle.start_detached(cluster.root)
    for word in (str(cluster.root), cluster.url, "local down", "KFP_PYTORCH_HOME"):
        assert word in str(caught.value)
    assert lifecycle.status(cluster.root) == cluster


def test_a_port_in_use_is_said_so_with_the_way_out(root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} .* choose another"):
            lifecycle.start_detached(root, port=port)
    assert lifecycle.status(root) is None


def test_a_folder_of_crds_that_is_not_there_is_said_so(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"no folder .*nowhere"):
        lifecycle.start_detached(root, crds=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[", "Expecting value"),
        ("{}", "kind is None"),
        ('{"kind": "CustomResourceDefinition", "spec": {"versions": []}}', "it has no 'names'"),
    ],
)
def test_a_file_that_is_no_crd_is_named_with_what_is_wrong(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"{path} is no CustomResourceDefinition as JSON.*{words}"):
        read_definitions(tmp_path)


def test_objects_are_checked_by_the_crds_that_are_given(root: Path, tmp_path: Path) -> None:
    crds = Path(__file__).resolve().parents[3] / "shared" / "crds"
    if not crds.is_dir():
        pytest.skip(f"{crds} is not there")
    started = lifecycle.start_detached(root, crds=crds)
    custom = client.CustomObjectsApi(config.new_client_from_config(str(started.kubeconfig)))
    wrong = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "j"},
        "spec": {"nprocPerNode": 2},
    }
    with pytest.raises(client.ApiException) as caught:
        custom.create_namespaced_custom_object(
            "kubeflow.org", "v1", "default", "pytorchjobs", wrong
        )
    assert caught.value.status == 422
    assert "spec.nprocPerNode" in caught.value.body


def test_what_an_earlier_cluster_left_is_no_cluster_and_its_claims_come_back(root: Path) -> None:
    first = lifecycle.start_detached(root)
    (root / "claims" / "team" / "data").mkdir(parents=True)
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: lifecycle.status(root) is None)
    assert (root / "cluster.json").exists()
    second = lifecycle.start_detached(root)
    assert second.pid != first.pid
    claims = pods_api(second).list_namespaced_persistent_volume_claim("team").items
    assert [each.metadata.name for each in claims] == ["data"]


def test_kill_9_of_the_cluster_ends_its_pods(root: Path) -> None:
    started = lifecycle.start_detached(root)
    pod = start_pod(started)
    os.kill(started.pid, signal.SIGKILL)
    eventually(lambda: gone(pod))


def test_kill_9_of_the_owner_leaves_no_process(root: Path) -> None:
    code = (
        "import pathlib, sys, time; from kfp_pytorch.local import lifecycle\n"
        "print(lifecycle.start_owned(pathlib.Path(sys.argv[1])).pid, flush=True)\n"
        "time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    running = lifecycle.status(root)
    assert running is not None
    assert running.pid == pid
    # A pod that leaves its session and ignores SIGTERM.
    code = (
        "import signal, subprocess, sys, time; signal.signal(15, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True); print('up', flush=True); time.sleep(600)"
    )
    pod = start_pod(running, command=["python", "-I", "-S", "-c", code])
    eventually(lambda: len(guard.descendants(pod)) == 2)
    below = guard.descendants(owner.pid)
    assert pid in below
    assert len(below) >= 5
    owner.kill()
    owner.wait()
    eventually(lambda: all(map(gone, below)))
    assert lifecycle.status(root) is None


def test_a_termination_waits_for_pods_that_end_in_order(root: Path, tmp_path: Path) -> None:
    started = lifecycle.start_detached(root)
    mark = tmp_path / "saved"
    code = (
        "import pathlib, signal, sys, time\n"
        "def save(*_): time.sleep(0.3); pathlib.Path(sys.argv[1]).touch(); sys.exit()\n"
        # A signal just before a sleep does not end it.
        "signal.signal(15, save); print('up', flush=True)\n"
        "while True: time.sleep(0.1)"
    )
    start_pod(started, command=["python", "-I", "-S", "-c", code, str(mark)])
    api = pods_api(started)
    eventually(lambda: "up" in api.read_namespaced_pod_log("p", "default"))
    os.kill(started.pid, signal.SIGTERM)
    eventually(lambda: gone(started.pid))
    assert mark.exists()


def test_one_that_is_still_starting_is_stopped_too(root: Path) -> None:
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(lifecycle.start_detached, root)
        eventually(lambda: lifecycle.is_locked(root))
        stopping = [pool.submit(lifecycle.stop, root) for _ in range(2)]
        assert any(each.result() for each in stopping)
    assert not lifecycle.is_locked(root)
    assert starting.exception() is None or isinstance(starting.exception(), ClusterError)


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "os.kill(os.getpid(), 9)"])
def test_one_whose_starter_ends_before_it_is_ready_ends_too(root: Path, end: str) -> None:
    code = (
        "import os, pathlib, sys; from kfp_pytorch.local import lifecycle\n"
        f"def ready(*_): {end}\n"
        "lifecycle._ready = ready; lifecycle.start_detached(pathlib.Path(sys.argv[1]))"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True)
    assert ended.returncode != 0
    eventually(lambda: not lifecycle.is_locked(root))


def test_what_does_not_end_in_time_is_said_with_the_way_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = lifecycle.start_detached(root)
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda *_: None)
        with pytest.raises(ClusterError, match=rf"did not end in 0\.1 s.* kill -9 {started.pid}"):
            lifecycle.stop(root, timeout=0.1)
    assert lifecycle.status(root) == started


def test_the_folder_is_given_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lifecycle.HOME_ENV, "/some/where")
    assert lifecycle.default_root() == Path("/some/where")
    monkeypatch.delenv(lifecycle.HOME_ENV)
    assert lifecycle.default_root() == Path.home() / ".kfp-pytorch"


def test_a_folder_that_kubeconfig_could_not_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lifecycle.ClusterError, match="separates the files in KUBECONFIG"):
        lifecycle.start_detached(tmp_path / "a:b")
    assert not (tmp_path / "a:b").exists()
