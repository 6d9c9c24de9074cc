"""The jobs of a run on a cluster, and their pods, as the API has them."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import click

from kfp_pytorch.cli.logs import local, pod_logs
from kfp_pytorch.cli.logs.source import Step
from kfp_pytorch.cli.runs.jobs import Job, job_of
from kfp_pytorch.launcher.constants import (
    MANAGED_BY_LABEL,
    MODEL_URI_ANNOTATION,
    POD,
    PREFIX,
    RUN_ID_LABEL,
    STEP_ID_LABEL,
)
from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.launcher.kubernetes import client, credentials
from kfp_pytorch.launcher.kubernetes.api_errors import KindAbsent, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each, name
from kfp_pytorch.launcher.kubernetes.pod_status import (
    container_ends,
    container_status,
    describe_exit_code,
    pod_phase,
)
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.runtime.identity import label_value
from kfp_pytorch.launcher.text import counted, some
from kfp_pytorch.local.kfp.runner import RUN_FILE

# Of a command that does not follow, in seconds.
_UNAVAILABILITY_BUDGET = 60.0
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ENDED = ("succeeded", "failed")
_NEWEST = 5


def find(
    asked: str, kubeconfig: Path | None, namespace: str, runs: Path, *, follow: bool
) -> ClusterRun:
    """Finds the jobs of a run by its id, by a job's name, or by a run whose steps ran here.

    `runs`: the folder of these. Raises click.ClickException: there are none. Raises StepError: the
    cluster cannot be asked.
    """
    environ = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})}
    kube = client.connect(
        namespace,
        policy=RetryPolicy() if follow else RetryPolicy(_UNAVAILABILITY_BUDGET),
        notify=lambda text: click.echo(text, err=True),
        load_credentials=lambda: credentials.load(environ),
    )
    if asked == "latest":
        newest = _labelled(kube, f"{MANAGED_BY_LABEL}={PREFIX}")[-1:]
        asked = next((_run_id(job) or job.name for job in newest), asked)
    run = ClusterRun(kube, asked, _step_ids(runs / asked))
    if not run.steps():
        raise click.ClickException(_none_there(kube, asked))
    return run


def step_name(job: Object) -> str:
    """The name of the step that made a job, from where KFP keeps its artifact; else the job's."""
    uri = str(dig(job, "metadata", "annotations", MODEL_URI_ANNOTATION) or "")
    # …/RUN/STEP/model, and on a cluster …/RUN/STEP/UUID/model.
    parts = [part for part in uri.split("/")[:-1] if not _UUID.fullmatch(part)]
    return parts[-1] if parts else name(job)


class ClusterRun:
    """A `Source`: the jobs that a cluster has of a run."""

    # What may still start is not known here.
    to_come: frozenset[str] = frozenset()
    advice = ""

    def __init__(self, kube: Kube, asked: str, step_ids: list[str]) -> None:
        self._kube, self._asked, self._step_ids = kube, asked, step_ids

    @property
    def title(self) -> str:
        """What was asked for, and the namespace."""
        return f"{self._asked} in namespace {self._kube.namespace}"

    def steps(self) -> list[Step]:
        """The steps whose jobs there are, the oldest job first."""
        found = _named(self._kube, self._asked)
        if run_id := label_value(self._asked):
            found += _labelled(self._kube, f"{RUN_ID_LABEL}={run_id}")
        if self._step_ids:
            found += _labelled(self._kube, f"{STEP_ID_LABEL} in ({','.join(self._step_ids)})")
        return [
            Step(
                step_name(job.manifest),
                job.kind.read_state(job.manifest).phase.value,
                job,
                job.name,
                _arguments(job),
            )
            for job in {job.name: job for job in found}.values()
        ]

    def is_over(self) -> bool:
        """Whether every job has ended."""
        return all(step.status in _ENDED for step in self.steps())

    def own_log(self, step: Step, *, follow: bool) -> None:
        """None: KFP has the logs of the steps themselves."""
        del step, follow

    def pods(self, step: Step) -> Mapping[int, str]:
        """The nodes whose pods there are, with how these are."""
        if step.job is None:
            return {}
        container = step.job.kind.container
        return {node: _how(pod, container) for node, pod in self._pods(step.job).items()}

    def failing_node(self, step: Step) -> int | None:
        """The first node whose container ended with an error, now or before a restart."""
        pods = sorted(self._pods(step.job).items()) if step.job else []
        for current in (True, False):
            for node, pod in pods:
                if any(end.exit_code and end.current == current for end in container_ends(pod)):
                    return node
        return None

    def pod_log(self, step: Step, node: int, *, follow: bool) -> Iterator[str]:
        """The lines of a node's container, and of the start before the current one."""
        job = step.job
        if job is None:
            return iter(())
        pod, container = job.pod(node), job.kind.container
        if not follow:
            return pod_logs.read(self._kube, pod, container)
        return pod_logs.follow(self._kube, pod, container, lambda: _is_over(self._kube, job))

    def follow_all(self) -> None:
        """Prints what the first node of each job writes until it has ended."""
        jobs = [step for step in self.steps() if step.job]
        threads = [
            _Printing(step.task if len(jobs) > 1 else "", self.pod_log(step, 0, follow=True))
            for step in jobs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
            if thread.error:
                raise thread.error

    def _pods(self, job: Job) -> dict[int, Object]:
        listed = self._kube.list(POD, labels=job.kind.pod_selector(job.name))
        own = [pod for pod in listed if job.kind.owns_pod(pod, job.manifest)]
        return {job.kind.node_of(job.manifest, pod): pod for pod in job.kind.in_order(own)}


class _Printing(threading.Thread):
    """Prints the lines of one job, each after the job's name where that is given."""

    error: StepError | None = None

    def __init__(self, job: str, lines: Iterable[str]) -> None:
        super().__init__(daemon=True)
        self._prefix, self._lines = f"{job} | " if job else "", lines

    def run(self) -> None:
        """Prints until the lines end."""
        try:
            for line in self._lines:
                click.echo(self._prefix + line)
        except StepError as error:
            self.error = error


def _step_ids(folder: Path) -> list[str]:
    """The labels of the jobs of a run whose steps ran on this machine; none if there is no such."""
    if not (folder / RUN_FILE).is_file():
        return []
    attempts = local.LocalRun(folder).attempts()
    jobs = [job_of(attempt.function, attempt.task, attempt.inputs) for attempt in attempts]
    return sorted({job.manifest["metadata"]["labels"][STEP_ID_LABEL] for job in jobs if job})


def _none_there(kube: Kube, asked: str) -> str:
    ours = reversed(_labelled(kube, f"{MANAGED_BY_LABEL}={PREFIX}"))
    there = [f"{job.name} (run {_run_id(job) or 'unknown'})" for job in ours]
    return (
        f"There is no job {asked!r} in namespace {kube.namespace!r}, and none of a run of that id. "
        f"{f'The newest there: {some(there, _NEWEST)}.' if there else ''}\n"
        "A job's pods have logs while they exist, and a job that fails is deleted unless its input "
        "cleanup is 'never'. The log of its step, in the KFP UI, has the lines of the first node "
        "and why it failed. -n names another namespace."
    )


def _run_id(job: Job) -> str:
    return str(dig(job.manifest, "metadata", "labels", RUN_ID_LABEL) or "")


def _labelled(kube: Kube, labels: str) -> list[Job]:
    """The jobs with these labels, the newest at the end."""
    found = []
    for kind in KINDS.values():
        try:
            found += [Job(kind, job) for job in kube.list(kind.resource, labels=labels)]
        except KindAbsent:
            continue
    return sorted(found, key=lambda job: str(dig(job.manifest, "metadata", "creationTimestamp")))


def _named(kube: Kube, asked: str) -> list[Job]:
    found = []
    for kind in KINDS.values():
        try:
            found.append(Job(kind, kube.get(kind.resource, asked)))
        except (NotFound, KindAbsent):
            continue
    return found


def _is_over(kube: Kube, job: Job) -> bool:
    try:
        now = kube.get(job.kind.resource, job.name)
    except NotFound:
        return True
    return job.kind.read_state(now).phase.ended


def _arguments(job: Job) -> dict[str, object]:
    """The arguments of a job's program: they tell the jobs of a loop apart."""
    for template in job.kind.pod_templates(job.manifest):
        for container in each(template, "spec", "containers"):
            if container.get("name") == job.kind.container:
                return {"args": list(container.get("args") or [])}
    return {}


def _how(pod: Object, container: str) -> str:
    codes = [end.exit_code for end in container_ends(pod) if end.exit_code]
    restarts = int(container_status(pod, container).get("restartCount") or 0)
    words = [
        pod_phase(pod),
        counted(restarts, "restart") if restarts else "",
        describe_exit_code(codes[0]) if codes else "",
    ]
    return f"{name(pod)}: {', '.join(filter(None, words))}"
