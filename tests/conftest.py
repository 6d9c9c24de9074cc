"""What tests of every part share."""

from __future__ import annotations

import atexit
import functools
import gc
import json
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from harness.scheduling import pytest_configure, pytest_xdist_make_scheduler
from hypothesis import settings

__all__ = ["pytest_configure", "pytest_xdist_make_scheduler"]

if TYPE_CHECKING:
    from harness.api_server import ThreadedServer
    from harness.s3 import S3

# Before torch is imported, here and by what tests start: tests share the cores, and threads that
# spin while they wait for each other take them from the other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Few people have it set, and with it no program shows that it forgets to flush what it writes.
os.environ.pop("PYTHONUNBUFFERED", None)

# What is started in the background of a shell ignores SIGINT, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported stays, and to look for garbage among it again and again, last of all when the
# process ends, takes half the time of importing it. `pytest_collection` takes this back.
gc.disable()
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(os._exit, 0)

# The path of a socket has 107 bytes at most, of which multiprocessing needs 32 for names.
if len(tempfile.gettempdir()) > 70:
    _sockets = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
    multiprocessing.process.current_process()._config["tempdir"] = _sockets  # type: ignore[attr-defined]
    atexit.register(shutil.rmtree, _sockets, ignore_errors=True)

# No deadline for an example, and the same examples each time: what fails was changed.
settings.load_profile("ci")

# The folders whose tests compute, those with the longest first; others mostly wait.
COMPUTING = ("e2e", "training", "cli", "serving")
# A file whose tests are all slow.
SLOW_FILE = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)
CRDS = Path(__file__).resolve().parents[2] / "shared" / "crds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kubeconfig", help="run tests/e2e on this cluster, not on a local one")
    parser.addoption("--training-image", default="", help="the training image of that cluster")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out the files whose tests are all slow where only others run.

    Every worker would import what they import, some of which takes seconds.
    """
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return True if SLOW_FILE.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_unconfigure() -> None:
    # Some packages count what is left of their objects at the end.
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mixes the files that compute with those that mostly wait.

    Cores are then in use all along, and by a few files at a time. No worker is left at the end
    with one that takes long.
    """
    files = list(dict.fromkeys(item.path for item in items))
    folder = {path: path.relative_to(Path(__file__).parent).parts[0] for path in files}
    computing = [path for name in COMPUTING for path in files if folder[path] == name]
    waiting = [path for path in files if folder[path] not in COMPUTING]
    place = {
        path: (number / len(group), path)
        for group in (computing, waiting)
        for number, path in enumerate(group)
    }
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="session")
def check_crd() -> Callable[[str, dict[str, Any]], None]:
    """`check_crd(plural, obj)`: fails unless the object is valid, unknown fields refused."""
    return check_against_crd


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[ThreadedServer]:
    """A Kubernetes API with no controllers, on a free loopback port, in a thread of its own.

    `api_server.url` and `.kubeconfig` say where it is, `.call(api_server.api.create, kind, obj)`
    acts on its objects, `.run(coroutine)` runs a controller in its loop, `.faults.add(Fault(…))`
    breaks it, `.requests` is what it was asked.
    """
    from harness.api_server import start_in_thread

    server = start_in_thread(tmp_path)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A real S3 server with the bucket `kfp-pytorch`."""
    from harness.s3 import start

    server, process = start(tmp_path_factory.mktemp("s3"))
    yield server
    process.terminate()
    process.wait()


def check_against_crd(plural: str, obj: dict[str, Any]) -> None:
    version = obj["apiVersion"].rpartition("/")[2]
    errors = [
        f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        for error in _validator(plural, version).iter_errors(obj)
    ]
    assert not errors, "\n".join(errors)


@functools.cache
def _validator(plural: str, version: str) -> Any:
    path = CRDS / f"{plural}.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    versions = json.loads(path.read_text())["spec"]["versions"]
    schema = next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == version)
    return jsonschema_rs.validator_for(closed(schema))


def closed(schema: Any) -> Any:
    """Copy a structural schema with every object in it closed to unknown fields.

    `metadata` at the root stays open: a CRD leaves it to Kubernetes.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        key: {name: closed(item) for name, item in value.items()}
        if key == "properties"
        else closed(value)
        for key, value in schema.items()
    }
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result
