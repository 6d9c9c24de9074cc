"""The logs of a run on this machine, from the files that it and the local cluster write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from kfp_pytorch.cli.logs.source import NEWEST, Step
from kfp_pytorch.cli.runs import labels, run_folder
from kfp_pytorch.cli.runs.events import ExecutorLines, Follower, StepResult, TerminalProgress
from kfp_pytorch.cli.runs.jobs import NAMESPACE, job_of
from kfp_pytorch.launcher.text import some
from kfp_pytorch.local.kfp.runner import PIPELINE_FILE, RUN_FILE, Run
from kfp_pytorch.local.kfp.step import EVENT_MARK
from kfp_pytorch.local.processes import locks

# How often a file is looked at for more, in seconds.
POLL_S = 0.1
_LINE_EVENT = '"event": "line"'


def find(asked: str, root: Path) -> LocalRun:
    """Finds a run by its name, folder or id, or the latest; of a name or id by its beginning.

    Raises click.ClickException: there is none, or more than one; those that there are are named.
    """
    runs = root / "runs"
    recorded = run_folder.recorded(runs)[::-1]
    if asked == "latest" and recorded:
        return LocalRun(runs / recorded[0].name)
    named = [run.name for run in recorded if asked in (run.name, run.id)]
    for folder in (Path(asked).absolute(), *(runs / name for name in named)):
        if (folder / RUN_FILE).is_file():
            return LocalRun(folder)
    begin = [r.name for r in recorded if r.name.startswith(asked) or r.id.startswith(asked)]
    if len(begin) == 1:
        return LocalRun(runs / begin[0])
    if begin:
        raise click.ClickException(
            f"{asked!r} may be any of {len(begin)} runs in {runs}: {some(begin, NEWEST)}."
        )
    raise click.ClickException(
        f"There is no run {asked!r} in {runs}. {_newest(recorded)}. Of a run on a cluster, "
        "--kubeconfig FILE says which cluster; another folder than that one, --root or "
        "KFP_PYTORCH_HOME."
    )


def listing(root: Path) -> list[tuple[str, ...]]:
    """Lists the runs of a folder with how they ended, the newest first.

    Raises click.ClickException: there are none.
    """
    runs = root / "runs"
    recorded = run_folder.recorded(runs)[::-1]
    if not recorded:
        raise click.ClickException(
            f"No run was made in {runs} yet; `kfp-pytorch run PIPELINE --local` makes one. Of runs "
            "on a cluster, --kubeconfig FILE says which cluster."
        )
    return [(run.name, _how(runs / run.name)) for run in recorded]


def _how(folder: Path) -> str:
    if not LocalRun(folder).is_over():
        return "running"
    return str(run_folder.read(folder / run_folder.SUMMARY_FILE).get("status") or "killed")


def _newest(recorded: Sequence[Run]) -> str:
    names = [run.name for run in recorded]
    return f"The newest there: {some(names, NEWEST)}" if names else "None was made there yet"


class Lines:
    """The lines of a file that may grow, each once it is whole.

    A file that was emptied, as by a run that is resumed, is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._rest = 0, b""

    def new(self) -> Iterator[bytes]:
        """Reads what has been added since the last call."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                for line in file:
                    self._offset += len(line)
                    if line.endswith(b"\n"):
                        yield self._rest + line[:-1]
                        self._rest = b""
                    else:
                        self._rest += line
        except FileNotFoundError:
            return


class LocalRun:
    """A `Source`: the run of a folder."""

    advice = "Of a job on a cluster, --kubeconfig FILE shows the pods."

    def __init__(self, folder: Path) -> None:
        self._folder, self._root = folder, folder.parent.parent
        self._log = Lines(folder / run_folder.LOG_FILE)
        self._follower = Follower(_Silent())

    @property
    def error(self) -> str:
        """What kfp.local itself said when it failed."""
        self.attempts()
        return self._follower.followed.error

    @property
    def title(self) -> str:
        """The run's name."""
        return f"run {self._folder.name}"

    @property
    def to_come(self) -> frozenset[str]:
        """The names of the pipeline's steps."""
        spec = self._spec()
        executors = spec.get("deploymentSpec", {}).get("executors", {})
        return frozenset(label.removeprefix("exec-") for label in executors)

    def _spec(self) -> dict[str, Any]:
        return run_folder.read(self._folder / PIPELINE_FILE)

    def _attempts(self) -> dict[str, int]:
        spec = self._spec()
        return labels.attempts(spec) if spec else {}

    def is_over(self) -> bool:
        """Whether no process of the run is left."""
        return not locks.is_held(self._folder / run_folder.LOG_FILE)

    def attempts(self) -> list[StepResult]:
        """The attempts of every step so far."""
        over = self.is_over()
        for line in self._log.new():
            text = line.decode("utf-8", "replace")
            # A log of a long training has millions of them.
            if _LINE_EVENT not in text:
                self._follower.take(text)
        followed = self._follower.finish() if over else self._follower.followed
        return followed.steps

    def steps(self) -> list[Step]:
        """The steps that have started, each with the status of its last attempt."""
        spec = self._spec()
        display = labels.display_names(spec) if spec else {}
        last: dict[tuple[str, str], StepResult] = {}
        for attempt in self.attempts():
            last[attempt.name, attempt.task] = attempt
        return [
            Step(
                each.name,
                each.status,
                job_of(each.function, each.task, each.inputs, each.component),
                each.task,
                each.inputs,
                display.get(each.name, ""),
            )
            for each in last.values()
        ]

    def own_log(self, step: Step, *, follow: bool) -> Iterator[str]:
        """The lines of a step, of all of its attempts."""
        lines, executor, pods = Lines(self._folder / run_folder.LOG_FILE), ExecutorLines(), set()
        while True:
            over = not follow or self._has_ended(step)
            for event in _events(lines):
                if event["event"] == "started" and _is_of(event, step):
                    pods.add(event["pod"])
                if event["event"] != "line" or event["pod"] not in pods:
                    continue
                if not executor.has(event["pod"], event["text"]):
                    yield event["text"]
            if over:
                return
            time.sleep(POLL_S)

    def pods(self, step: Step) -> Mapping[int, str]:
        """The nodes whose logs the local cluster has, with the newest file of each."""
        if step.job is None:
            return {}
        files = {node: self._files(step, node) for node in range(step.job.nodes)}
        return {node: str(found[-1]) for node, found in files.items() if found}

    def failing_node(self, step: Step) -> int | None:
        """None: the step's own log has the diagnosis, and the lines of the rank that failed."""
        del step
        return None

    def pod_log(self, step: Step, node: int, *, follow: bool) -> Iterator[str]:
        """The lines of every start of a node's container that the cluster keeps."""
        return container_lines(
            lambda: self._files(step, node), lambda: not follow or self._has_ended(step)
        )

    def follow_all(self) -> None:
        """Prints what the run's own command prints."""
        lines = Lines(self._folder / run_folder.LOG_FILE)
        follower = Follower(TerminalProgress(err=False), self._attempts())
        while True:
            over = self.is_over()
            for line in lines.new():
                follower.take(line.decode("utf-8", "replace"))
            if over:
                return
            time.sleep(POLL_S)

    def _files(self, step: Step, node: int) -> list[Path]:
        return step.job.log_files(self._root, node, NAMESPACE) if step.job else []

    def _has_ended(self, step: Step) -> bool:
        """Whether a step writes no more; one that failed may be tried again while the run lasts."""
        if self.is_over():
            return True
        same = [
            each for each in self.attempts() if (each.name, each.task) == (step.name, step.task)
        ]
        return bool(same) and same[-1].status == "succeeded"


class _Silent(TerminalProgress):
    """Shows nothing."""

    def __init__(self) -> None:
        super().__init__(err=True)

    def _print(self, text: str) -> None:
        del text


def _events(lines: Lines) -> Iterator[dict[str, Any]]:
    for line in lines.new():
        _, mark, text = line.decode("utf-8", "replace").partition(EVENT_MARK)
        if mark:
            yield json.loads(text)


def _is_of(event: Mapping[str, Any], step: Step) -> bool:
    return (event["step"], event.get("task", "")) == (step.name, step.task)


def container_lines(files: Callable[[], list[Path]], is_over: Callable[[], bool]) -> Iterator[str]:
    """The texts of a container's logs, file after file, as they grow.

    `files`: those that there are now, the oldest first. `is_over`: whether no more will come.
    """
    readers: dict[Path, Lines] = {}
    partial = b""
    while True:
        over = is_over()
        for path in files():
            for line in readers.setdefault(path, Lines(path)).new():
                # The time, the stream, and P where the line goes on in the next.
                _, _, tagged = line.partition(b" stdout ")
                tag, _, text = tagged.partition(b" ")
                partial += text
                if tag != b"P":
                    yield partial.decode("utf-8", "replace")
                    partial = b""
        if over:
            return
        time.sleep(POLL_S)
