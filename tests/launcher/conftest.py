"""A real API server in a thread, and hands to play the operator and the kubelet with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness.api_server import ThreadedServer, start_in_thread
from harness.forked import Forker
from harness.hands import HASTY, IMPATIENT, Hands, bury, connected
from harness.held import Clock
from harness.threads import join_since

from kfp_pytorch.launcher.constants import PYTORCHJOB
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.pytorchjob.kind import PYTORCH_JOB
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.outputs.artifacts import Places
from kfp_pytorch.launcher.runtime import printing
from kfp_pytorch.launcher.runtime.identity import job_name
from kfp_pytorch.launcher.runtime.stopping import Stopper
from kfp_pytorch.launcher.steps.job import Artifacts, Prepare, as_given, train
from kfp_pytorch.launcher.waiting.limits import Limits

MODEL_URI = "minio://mlpipeline/v2/artifacts/train/run-1/pytorch-job/abc/model"
# A wait, scaled down so that a test sees its end. What must not pass in a test that is not about
# it is long: the machine may be busy.
QUICK = Limits(
    acknowledge=60.0,
    kind_absent=0.5,
    unavailability_budget=30.0,
    poll=0.15,
    watch_idle=0.5,
    watch_lifetime=60.0,
    pods_watch_lifetime=60.0,
    slow_interval=0.5,
    log_idle=2.0,
    quick_interval=0.2,
    progress_interval=0.4,
    deletion=30.0,
    pull_grace=0.5,
    config_grace=0.3,
    refusal_grace=0.3,
    gather=10.0,
)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedServer]:
    started = start_in_thread(tmp_path_factory.mktemp("server"), bookmark_every_s=0.2)
    burying = started.run(bury(started.api))
    yield started
    burying.cancel()
    started.stop()


@pytest.fixture
def server(shared_server: ThreadedServer) -> ThreadedServer:
    """A server as good as new: with one claim, and nothing going wrong."""
    shared_server.set_clock(0)
    Hands(shared_server).reset()
    return shared_server


@pytest.fixture
def kube(server: ThreadedServer) -> Kube:
    return connected(server)


@pytest.fixture
def hasty(server: ThreadedServer) -> Kube:
    """A connection that soon asks again."""
    return connected(server, HASTY)


@pytest.fixture
def impatient(server: ThreadedServer) -> Kube:
    """A connection that soon takes no answer for none."""
    return connected(server, IMPATIENT)


@dataclass
class Output:
    """An output artifact, as KFP hands it to a step."""

    path: str
    uri: str
    metadata: dict[str, Any]


class Run:
    """One attempt of the step, in a thread of its own."""

    def __init__(
        self,
        kube: Kube,
        folder: Path,
        limits: Limits,
        *,
        kind: JobKind = PYTORCH_JOB,
        task: str = "abc",
        prepare: Prepare = as_given,
        **inputs: Any,
    ) -> None:
        self.kind = kind
        self.inputs = kind.parse_inputs(**{"image": "train:1", "start_timeout": 0} | inputs)
        names = ("model", "metrics", "curves", "report")
        model_uri = MODEL_URI.replace("/abc/", f"/{task}/")
        uris = {name: model_uri.replace("/model", f"/{name}") for name in names}
        self.outputs = Artifacts(
            **{n: Output(str(folder / n), uris[n], {}) for n in names}  # type: ignore[arg-type]
        )
        self.left: list[int] = []
        self.stopper = Stopper(leave=self.left.append, grace=10.0)
        self.places: Places | None = None
        self.error: BaseException | None = None
        self.ended_at = 0.0
        self._kube, self._limits, self._prepare = kube, limits, prepare
        self.job = job_name(self.inputs.name, model_uri, kind.longest_suffix(self.inputs))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.places = train(
                self.kind,
                self._kube,
                self.inputs,
                self.outputs,
                self._limits,
                self.stopper,
                self._prepare,
            )
        except BaseException as error:
            self.error = error
        self.ended_at = time.monotonic()

    @property
    def going(self) -> bool:
        return self._thread.is_alive()

    def wait(self, within: float = 60.0) -> Run:
        self._thread.join(within)
        assert not self.going, "the step does not end"
        return self

    def succeeded(self, within: float = 60.0) -> Places:
        self.wait(within)
        if self.error is not None:
            raise self.error
        assert self.places is not None
        return self.places

    def failed(self, kind: type[BaseException], within: float = 60.0) -> str:
        self.wait(within)
        assert isinstance(self.error, kind), f"{self.error!r} and {self.places}"
        return str(self.error)


@pytest.fixture(scope="session")
def quick() -> Limits:
    """The limits of a wait, scaled down."""
    return QUICK


@pytest.fixture(scope="session")
def start_run() -> type[Run]:
    """Starts one attempt of a step of any kind of job."""
    return Run


@pytest.fixture
def hands(server: ThreadedServer) -> Hands:
    return Hands(server)


@pytest.fixture(scope="session")
def forker(shared_server: ThreadedServer) -> Iterator[Forker]:
    """Starts steps in processes of their own."""
    started = Forker(shared_server.kubeconfig)
    yield started
    started.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What steps tell a person, line by line, without the times and not wrapped."""
    lines: list[str] = []
    write = printing.write

    def also_kept(text: str) -> None:
        lines.append(text.rstrip("\n").replace("\n  ", " ").partition("] ")[2])
        write(text)

    monkeypatch.setattr(printing, "write", also_kept)
    return lines


@pytest.fixture
def says(hands: Hands, told: list[str]) -> Callable[[str], None]:
    """`says(words)`: a person is told in a line that begins so, sooner or later."""
    return lambda words: hands.until(lambda: any(line.startswith(words) for line in told))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that a wait counts its limits by."""
    return Clock().install(monkeypatch, "waiting.wait", "runtime.printing")


@pytest.fixture
def later(clock: Clock, hands: Hands, told: list[str]) -> Callable[[Run, float], None]:
    """`later(run, seconds)`: the wait goes on though so much time has passed for it at once."""

    def goes_on(run: Run, seconds: float) -> None:
        clock.ahead += seconds
        before = len(told)
        # It tells of how things stand after each look at its limits.
        hands.until(lambda: len(told) > before + 1 or not run.going)
        assert run.going, run.error

    return goes_on


@pytest.fixture
def step(kube: Kube, hands: Hands, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """`step(limits…, inputs…)`: starts an attempt of the step; of another one with `task`."""
    runs: list[Run] = []
    before = set(threading.enumerate())

    def start(limits: dict[str, float] | None = None, on: Kube | None = None, **inputs: Any) -> Run:
        run = Run(on or kube, tmp_path, replace(QUICK, **(limits or {})), **inputs)
        runs.append(run)
        return run

    yield start
    hands.server.faults.clear()
    for run in runs:
        if run.going and hands.find(PYTORCHJOB, run.job):
            hands.delete(PYTORCHJOB, run.job)
        run.wait()
    # What they still ask is not to be counted in the next test.
    join_since(before)
