"""One container of a pod: starts its process, restarts it, and keeps its state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.controllers.kubelet import container_config, probes, stand_ins
from kfp_pytorch.local.controllers.kubelet.container_config import CreateError, ImageError, Place
from kfp_pytorch.local.controllers.kubelet.environment import ConfigError
from kfp_pytorch.local.controllers.kubelet.pod_status import ContainerState
from kfp_pytorch.local.controllers.kubelet.process import Process, ProcessSpec, StartError, tail
from kfp_pytorch.local.controllers.kubelet.timing import sleep
from kfp_pytorch.local.quantities import quantity

_KILLED = 137
_START_ERROR = 128
# The longest termination message; of a log that takes its place, so many lines and bytes.
_MESSAGE_LIMIT = 4096
_LOG_LINES, _LOG_BYTES = 80, 2048
# Seconds until a container that could not be created is retried.
_RETRY_S = 1.0


class Container:
    """A container while its pod lives. `changed`: is called whenever `state` has changed.

    `up` is set once it has started, its startup probe included.
    """

    def __init__(
        self, place: Place, spec: Object, restart_policy: str, changed: Callable[[], None]
    ) -> None:
        self.place = place
        self._spec = spec
        self._name: str = spec["name"]
        self._policy = restart_policy
        self._timing = place.node.timing
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
        """The id of the process that all of its processes descend from; None if none runs."""
        return self._process.pid if self._process else None

    async def run(self) -> bool:
        """Run it until it is not restarted any more; returns whether it succeeded."""
        if self._name in stand_ins.OF_IMAGES:
            return await self._stand_in(stand_ins.OF_IMAGES[self._name])
        restarts = 0
        while True:
            began = asyncio.get_running_loop().time()
            ended = await self._attempt()
            if ended is None or self._stopping.is_set() or not self._restarts(ended):
                self._finish(ended or self._unknown())
                return not self.state.ended["exitCode"]
            if asyncio.get_running_loop().time() - began > 2 * self._timing.longest_backoff:
                restarts = 0
            restarts += 1
            await self._wait_before(restarts, ended)

    def stop(self, grace: float) -> None:
        """Terminate it, and kill it after `grace` seconds, or after the grace period of its pod."""
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

    def mark_unknown(self) -> None:
        """Report it as terminated, as its pod ends before it could be started."""
        if not self.state.ended:
            self._finish(self._unknown())

    def kill_for_memory(self) -> None:
        """Kill it, as the kernel kills a container that exceeds its memory limit."""
        self._out_of_memory = True
        if self._process:
            self._process.kill()

    def _kill(self, process: Process) -> None:
        if self._process is process:
            process.kill()

    async def _stand_in(self, wait: stand_ins.Wait) -> bool:
        started_at = self._now()
        self.state.state = {"running": {"startedAt": started_at}}
        self._changed()
        await wait(self.place, self._stopping)
        done = not self._stopping.is_set()
        self._finish(self._terminated(0, "Completed", started_at) if done else self._unknown())
        return done

    # One start.

    async def _attempt(self) -> Object | None:
        """Start the process and wait for its end; None if it is stopped before it starts."""
        spec = await self._process_spec()
        if spec is None:
            return None
        self._event("Normal", "Created", f"Created container: {self._name}")
        self._out_of_memory = False
        try:
            self._process = await Process.start(spec)
        except (StartError, OSError) as error:
            return self._not_started(str(error))
        try:
            return await self._running(self._process, spec)
        except asyncio.CancelledError:
            self._process.kill()
            raise
        finally:
            self._process = None

    async def _process_spec(self) -> ProcessSpec | None:
        """The process to start, once all that it refers to exists; None if it is stopped."""
        while not self._stopping.is_set():
            try:
                container_config.check_image(self._spec["image"])
                found = container_config.process_spec(self.place, self._spec, self.state.restarts)
            except (ConfigError, CreateError, ImageError, OSError) as error:
                reason = _REASONS.get(type(error), "CreateContainerError")
                self._wait(reason, str(error))
                self._event("Warning", "Failed", f"Error: {error}")
                await sleep(_RETRY_S, self._stopping)
            else:
                message = f'Container image "{self._spec["image"]}" already present on machine'
                self._event("Normal", "Pulled", message)
                return found
        return None

    async def _running(self, process: Process, spec: ProcessSpec) -> Object:
        started_at = self._now()
        self.state.state = {"running": {"startedAt": started_at}}
        self.state.container_id = f"containerd://{process.pid}"
        if not self._spec.get("startupProbe"):
            self._set_started()
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
        message = self._termination_message(code, spec.log)
        if process.log_error:
            # In brackets: it is no line of the program's.
            lost = f"[the end of this container's log is lost: {process.log_error}]"
            message = f"{message}\n{lost}".lstrip()
        return self._terminated(code, reason, started_at, message)

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

    def _termination_message(self, code: int, log: Path) -> str:
        try:
            message = self.place.termination_log(self._spec).read_bytes()[-_MESSAGE_LIMIT:]
        except OSError:
            message = b""
        to_logs = self._spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not message and code and to_logs:
            return tail(log, _LOG_LINES, _LOG_BYTES)
        return message.decode(errors="replace")

    # Between two starts.

    def _restarts(self, ended: Object) -> bool:
        if self._policy == "OnFailure":
            return bool(ended["exitCode"])
        return self._policy == "Always"

    async def _wait_before(self, restart: int, ended: Object) -> None:
        if ended["reason"] == "StartError":
            self.state.last_state = {"terminated": ended}
            self.state.state = {}  # so that a new restart count is reported
            self._wait("RunContainerError", ended["message"])
        else:
            self.state.state = {"terminated": ended}
            self._changed()
        delay = self._timing.before(restart)
        reported_after = min(delay, self._timing.crash_loop)
        await sleep(reported_after, self._stopping)
        self.state.last_state = {"terminated": ended}
        if restart > 1 and not self._stopping.is_set():
            self._report_crash_loop(delay)
            await sleep(delay - reported_after, self._stopping)
        if not self._stopping.is_set():
            self.state.restarts += 1
            # As a kubelet, it keeps the log of the run before, and none that is older.
            self.place.log(self._spec, self.state.restarts - 2).unlink(missing_ok=True)

    def _report_crash_loop(self, delay: float) -> None:
        meta = objects.metadata(self.place.pod)
        pod = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
        message = f"restarting failed container={self._name} pod={pod}"
        self._wait("CrashLoopBackOff", f"back-off {delay:g}s {message}")
        message = f"Back-off restarting failed container {self._name} in pod {pod}"
        self._event("Warning", "BackOff", message)

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

    def _unknown(self) -> Object:
        """How it ended before; else that there is no container."""
        last: Object | None = self.state.ended or self.state.last_state.get("terminated")
        message = "The container could not be located when the pod was terminated"
        return last or self._terminated(_KILLED, "ContainerStatusUnknown", self._now(), message)

    # Probes.

    async def _probe(self, process: Process) -> None:
        if self._spec.get("startupProbe"):
            async for succeeded in self._results("Startup"):
                if succeeded:
                    break
                self._restart(process)
            self._set_started()
            self._set_ready(not self._spec.get("readinessProbe"))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_readiness())
            group.create_task(self._follow_liveness(process))

    async def _follow_readiness(self) -> None:
        async for ready in self._results("Readiness"):
            self._set_ready(ready)

    async def _follow_liveness(self, process: Process) -> None:
        async for alive in self._results("Liveness"):
            if not alive:
                self._restart(process)

    async def _results(self, kind: str) -> AsyncIterator[bool]:
        """The results of a probe; none if the container has no such probe."""
        probe = self._spec.get(f"{kind.lower()}Probe")
        if not probe:
            return
        once = probes.check(self.place.pod, probe, self.place.node.ports)
        if once is None:
            yield True
            return

        def failed(why: str) -> None:
            self._event("Warning", "Unhealthy", f"{kind} probe failed: {why}")

        async for succeeded in probes.results(probe, once, failed):
            yield succeeded

    def _set_started(self) -> None:
        self.state.started = True
        self.up.set()

    def _set_ready(self, ready: bool) -> None:
        if self.state.ready != ready:
            self.state.ready = ready
            self._changed()

    def _restart(self, process: Process) -> None:
        message = f"Container {self._name} failed liveness probe, will be restarted"
        self._event("Normal", "Killing", message)
        process.terminate()

    def _event(self, type_: str, reason: str, message: str) -> None:
        path = f"spec.containers{{{self._name}}}"
        self.place.node.recorder.event(self.place.pod, type_, reason, message, path)

    def _now(self) -> str:
        return objects.timestamp(self.place.node.api.clock())


_REASONS: dict[type[Exception], str] = {
    ConfigError: "CreateContainerConfigError",
    ImageError: "InvalidImageName",
}
