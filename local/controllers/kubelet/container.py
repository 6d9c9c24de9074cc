"""One container of a pod: starts its process, again where it must, and tells how it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.constants import INIT_CONTAINER
from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.controllers.kubelet import container_config, probes
from kfp_pytorch.local.controllers.kubelet.container_config import CreateError, ImageError, Place
from kfp_pytorch.local.controllers.kubelet.environment import ConfigError
from kfp_pytorch.local.controllers.kubelet.pod_status import ContainerState
from kfp_pytorch.local.controllers.kubelet.process import Launch, Process, StartError, tail
from kfp_pytorch.local.controllers.kubernetes.events import Recorder
from kfp_pytorch.local.quantities import quantity

Object = dict[str, Any]

KILLED = 137
_START_ERROR = 128
# Each container's last words; of its log, so many lines and bytes.
_MESSAGE_LIMIT = 4096
_LOG_LINES, _LOG_BYTES = 80, 2048
# How soon what could not be made is tried again.
_RETRY_S = 1.0


@dataclass(frozen=True)
class Backoff:
    """How long a container that ended waits to be started again.

    The first start after an end is at once. The times are those of a kubelet with
    ReduceDefaultCrashLoopBackOffDecay: a real 10 s to 5 minutes would try nobody's code better.

    Attributes:
        first: Seconds before the second.
        longest: Seconds that no wait exceeds; twice as long a run begins anew.
    """

    first: float = 1.0
    longest: float = 60.0

    def before(self, restart: int) -> float:
        """Seconds to wait before a restart, counted from 1 since the last long run."""
        return 0.0 if restart <= 1 else float(min(self.first * 2 ** (restart - 2), self.longest))


class Container:
    """A container while its pod lives.

    Attributes:
        place: Where it runs.
        state: What is known of it.
        memory_limit: Bytes that it may hold; None for any.
        up: Is set once it has started, its startup probe included.

    Args:
        place: Where it runs.
        spec: The container in the pod's spec.
        restart_policy: When it is started again.
        recorder: Where events go.
        backoff: How long it waits before.
        changed: Is called whenever `state` has changed.
    """

    def __init__(
        self,
        place: Place,
        spec: Object,
        restart_policy: str,
        recorder: Recorder,
        backoff: Backoff,
        changed: Callable[[], None],
    ) -> None:
        self.place = place
        self._spec = spec
        self._name: str = spec["name"]
        self._policy = restart_policy
        self._recorder = recorder
        self._backoff = backoff
        self._changed = changed
        self._stopping = asyncio.Event()
        self.up = asyncio.Event()
        self._process: Process | None = None
        self._out_of_memory = False
        waiting = "PodInitializing" if place.pod["spec"].get("initContainers") else ""
        reason = {"reason": waiting or "ContainerCreating"}
        self.state = ContainerState(self._name, spec["image"], {"waiting": reason})
        limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
        self.memory_limit = quantity(limit) if limit else None

    @property
    def pid(self) -> int | None:
        """The process id that all of its processes are below; None while it does not run."""
        return self._process.pid if self._process else None

    async def run(self) -> bool:
        """Run it until it has ended for good; returns whether it succeeded."""
        if self._name == INIT_CONTAINER:
            # It waits until the master's name is known; here every name is 127.0.0.1.
            self._finish(self._terminated(0, "Completed", self._now()))
            return True
        restarts = 0
        while True:
            began = asyncio.get_running_loop().time()
            ended = await self._attempt()
            if ended is None or self._stopping.is_set() or not self._restarts(ended):
                self._finish(ended or self._never_ran())
                return not self.state.ended["exitCode"]
            if asyncio.get_running_loop().time() - began > 2 * self._backoff.longest:
                restarts = 0
            restarts += 1
            await self._wait_before(restarts, ended)

    def stop(self, grace: float) -> None:
        """Ask it to end.

        Args:
            grace: Seconds until it is killed; its pod's own grace is the longest.
        """
        self._stopping.set()
        process = self._process
        if process is None:
            return
        if grace <= 0:
            process.kill()
            return
        self._event("Normal", "Killing", f"Stopping container {self._name}")
        process.terminate()
        asyncio.get_running_loop().call_later(grace, self._kill, process)

    def give_up(self) -> None:
        """Say that it ended without having run, as its pod ends before its turn came."""
        if not self.state.ended:
            self._finish(self._never_ran())

    def kill_for_memory(self) -> None:
        """Kill it, as the kernel kills what exceeds its memory limit."""
        self._out_of_memory = True
        if self._process:
            self._process.kill()

    def _kill(self, process: Process) -> None:
        if self._process is process:
            process.kill()

    # One start.

    async def _attempt(self) -> Object | None:
        """Start the process and wait for its end; None if it is stopped before it starts."""
        launch = await self._prepared()
        if launch is None:
            return None
        self._event("Normal", "Created", f"Created container: {self._name}")
        self._out_of_memory = False
        try:
            self._process = await Process.start(launch)
        except (StartError, OSError) as error:
            return self._not_started(str(error))
        try:
            return await self._running(self._process, launch)
        except asyncio.CancelledError:
            self._process.kill()
            raise
        finally:
            self._process = None

    async def _prepared(self) -> Launch | None:
        """What is to be started, once all that it needs is there."""
        while not self._stopping.is_set():
            try:
                container_config.check_image(self._spec["image"])
                prepared = container_config.launch(self.place, self._spec, self.state.restarts)
            except (ConfigError, CreateError, ImageError, OSError) as error:
                reason = _REASONS.get(type(error), "CreateContainerError")
                self._wait(reason, str(error))
                self._event("Warning", "Failed", f"Error: {error}")
                await self._sleep(_RETRY_S)
            else:
                image = self._spec["image"]
                said = f'Container image "{image}" already present on machine'
                self._event("Normal", "Pulled", said)
                return prepared
        return None

    async def _running(self, process: Process, launch: Launch) -> Object:
        started_at = self._now()
        self.state.state = {"running": {"startedAt": started_at}}
        self.state.container_id = f"containerd://{process.pid}"
        if not self._spec.get("startupProbe"):
            self._start_up()
        self.state.ready = self.state.started and not self._spec.get("readinessProbe")
        self._event("Normal", "Started", f"Started container {self._name}")
        self._changed()
        watching = asyncio.create_task(self._probe(process))
        if self._stopping.is_set():  # while it was being started
            process.terminate()
        try:
            code = await process.wait()
        finally:
            watching.cancel()
        self.state.ready = self.state.started = False
        reason = "OOMKilled" if self._out_of_memory else "Error" if code else "Completed"
        words = self._last_words(code, launch.log)
        if process.lost:
            # In brackets: it is no line of the program's.
            lost = f"[the end of this container's log is lost: {process.lost}]"
            words = f"{words}\n{lost}".lstrip()
        return self._terminated(code, reason, started_at, words)

    def _not_started(self, message: str) -> Object:
        self._event("Warning", "Failed", f"Error: {message}")
        never = "1970-01-01T00:00:00Z"
        return self._terminated(_START_ERROR, "StartError", never, message)

    def _terminated(self, code: int, reason: str, started_at: str, message: str = "") -> Object:
        ended = {
            "exitCode": code,
            "reason": reason,
            "startedAt": started_at,
            "finishedAt": self._now(),
            "containerID": self.state.container_id,
        }
        return {**ended, "message": message} if message else ended

    def _last_words(self, code: int, log: Path) -> str:
        try:
            words = self.place.termination_log(self._spec).read_bytes()[-_MESSAGE_LIMIT:]
        except OSError:
            words = b""
        to_logs = self._spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not words and code and to_logs:
            return tail(log, _LOG_LINES, _LOG_BYTES)
        return words.decode(errors="replace")

    # Between two starts.

    def _restarts(self, ended: Object) -> bool:
        if self._policy == "OnFailure":
            return bool(ended["exitCode"])
        return self._policy == "Always"

    async def _wait_before(self, restart: int, ended: Object) -> None:
        self.state.last_state = {"terminated": ended}
        if ended["reason"] == "StartError":
            self._wait("RunContainerError", ended["message"])
        delay = self._backoff.before(restart)
        if delay:
            meta = objects.metadata(self.place.pod)
            pod = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
            said = f"restarting failed container={self._name} pod={pod}"
            self._wait("CrashLoopBackOff", f"back-off {delay:g}s {said}")
            said = f"restarting failed container {self._name} in pod {pod}"
            self._event("Warning", "BackOff", f"Back-off {said}")
            await self._sleep(delay)
        if not self._stopping.is_set():
            self.state.restarts += 1
            self._forget_old_logs()

    def _forget_old_logs(self) -> None:
        """Keep the log of the start before, as a kubelet does, and none that is older."""
        self.place.log(self._spec, self.state.restarts - 2).unlink(missing_ok=True)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _wait(self, reason: str, message: str) -> None:
        waiting = {"waiting": {"reason": reason, "message": message}}
        if self.state.state != waiting:
            self.state.state = waiting
            self._changed()

    def _finish(self, ended: Object) -> None:
        self.state.state = {"terminated": ended}
        if self.state.last_state.get("terminated") == ended:
            self.state.last_state = {}
        self._changed()

    def _never_ran(self) -> Object:
        last: Object | None = self.state.last_state.get("terminated")
        said = "The container could not be located when the pod was terminated"
        return last or self._terminated(KILLED, "ContainerStatusUnknown", self._now(), said)

    # Probes.

    async def _probe(self, process: Process) -> None:
        startup = self._spec.get("startupProbe")
        if startup:
            started = asyncio.Event()
            watching = asyncio.create_task(
                self._watch("Startup", startup, lambda ok: self._startup(ok, started, process))
            )
            try:
                await started.wait()
            finally:
                watching.cancel()
            self._start_up()
            self._set_ready(not self._spec.get("readinessProbe"))
        async with asyncio.TaskGroup() as group:
            for kind, tell in (
                ("Readiness", self._set_ready),
                ("Liveness", lambda alive: self._alive(alive, process)),
            ):
                probe = self._spec.get(f"{kind.lower()}Probe")
                if probe:
                    group.create_task(self._watch(kind, probe, tell))

    async def _watch(self, kind: str, probe: Object, tell: Callable[[bool], None]) -> None:
        once = probes.check(self.place.pod, probe, self.place.ports)
        if once is None:
            tell(True)
            return

        def failed(wrong: str) -> None:
            self._event("Warning", "Unhealthy", f"{kind} probe failed: {wrong}")

        await probes.watch(probe, once, tell, failed)

    def _start_up(self) -> None:
        self.state.started = True
        self.up.set()

    def _startup(self, succeeded: bool, started: asyncio.Event, process: Process) -> None:
        if succeeded:
            started.set()
        else:
            self._alive(False, process)

    def _set_ready(self, ready: bool) -> None:
        if self.state.ready != ready:
            self.state.ready = ready
            self._changed()

    def _alive(self, alive: bool, process: Process) -> None:
        if not alive:
            said = f"Container {self._name} failed liveness probe, will be restarted"
            self._event("Normal", "Killing", said)
            process.terminate()

    def _event(self, type_: str, reason: str, message: str) -> None:
        path = f"spec.containers{{{self._name}}}"
        self._recorder.event(self.place.pod, type_, reason, message, path)

    def _now(self) -> str:
        return objects.timestamp(self.place.api.clock())


_REASONS: dict[type[Exception], str] = {
    ConfigError: "CreateContainerConfigError",
    ImageError: "InvalidImageName",
}
