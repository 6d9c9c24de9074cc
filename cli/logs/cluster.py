"""The jobs of a run on a cluster, and their pods, as the API has them."""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from kfp_pytorch.cli.logs import local, pod_logs
from kfp_pytorch.cli.logs.source import NEWEST, Step
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
from kfp_pytorch.launcher.jobs.registry import EVERY_KIND
from kfp_pytorch.launcher.kubernetes import client, credentials
from kfp_pytorch.launcher.kubernetes.api_errors import Forbidden, KindAbsent, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each, name
from kfp_pytorch.launcher.kubernetes.pod_status import (
    container_ends,
    container_status,
    describe_exit_code,
    pod_phase,
    reason_not_running,
)
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.runtime.identity import label_value
from kfp_pytorch.launcher.text import counted, some
from kfp_pytorch.local.kfp.runner import RUN_FILE

# Of a command that does not follow, in seconds.
_UNAVAILABILITY_BUDGET = 60.0
# Of a server that has never answered, in seconds: most often its address is wrong.
_FIRST_CONTACT = 10.0
# How many lines are read ahead of what is printed.
_AHEAD = 1000
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ENDED = ("succeeded", "failed")
_WHILE_THEY_EXIST = "A job's pods have logs while they exist"
_IN_THE_UI = (
    "The log of its step, in the KFP UI, has the lines of the first node and why it failed."
)


def connect(kubeconfig: Path | None, namespace: str, *, follow: bool) -> Kube:
    """Connects to the cluster of a kubeconfig file, or of the environment.

    Raises StepError: there is none.
    """
    environ = {**os.environ, **({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})}
    policy = RetryPolicy(first_contact=_FIRST_CONTACT)
    return client.connect(
        namespace,
        policy=policy if follow else replace(policy, unavailability_budget=_UNAVAILABILITY_BUDGET),
        notify=lambda text: click.echo(text, err=True),
        load_credentials=lambda: credentials.load(environ),
    )


def find(kube: Kube, asked: str, root: Path) -> ClusterRun:
    """Finds the jobs of a run by its id, by a job's name, or by a run whose steps ran here.

    Of an id or a name the beginning is enough. `root`: the folder of runs whose steps ran here.
    Raises click.ClickException: there are none. Raises StepError: the cluster cannot be asked.
    """
    ours = _ours(kube)
    if asked == "latest" and ours:
        asked = _run_id(ours[0]) or ours[0].name
    run = ClusterRun(kube, asked, _step_ids(root / "runs" / asked))
    if run.steps():
        return run
    named = [job.name for job in ours if job.name.startswith(asked)]
    ids = {_run_id(job) for job in ours if _run_id(job).startswith(asked)}
    ids |= {_run_id(job) or job.name for job in ours if job.name in named}
    for found in (named, sorted(ids)):
        if len(found) == 1:
            return ClusterRun(kube, found[0], [])
    raise click.ClickException(
        f"{asked!r} may be any of {len(ids)} runs in namespace {kube.namespace!r}: "
        f"{some(sorted(ids), NEWEST)}."
        if ids
        else _none_there(kube, asked, ours)
    )


def listing(kube: Kube) -> list[tuple[str, ...]]:
    """Lists the run, the name and the state of the jobs of a namespace, the newest first.

    Raises click.ClickException: there are none. Raises StepError: the cluster cannot be asked.
    """
    ours = _ours(kube)
    if not ours:
        raise click.ClickException(
            f"There is no job of kfp-pytorch in namespace {kube.namespace!r}. -n names another."
        )
    states = [job.kind.read_state(job.manifest).phase.value for job in ours]
    return [(_run_id(job) or "-", job.name, state) for job, state in zip(ours, states, strict=True)]


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
    error = ""
    advice = f"{_WHILE_THEY_EXIST}. {_IN_THE_UI}"

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
            found += _labelled(self._kube, f"{RUN_ID_LABEL}={run_id}")[0]
        if self._step_ids:
            found += _labelled(self._kube, f"{STEP_ID_LABEL} in ({','.join(self._step_ids)})")[0]
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
        if job.kind.name_end:
            pod = name(self._pods(job).get(node, {})) or pod
        if not follow:
            return pod_logs.read(self._kube, pod, container)
        return pod_logs.follow(
            self._kube,
            pod,
            container,
            lambda: _is_over(self._kube, job),
            lambda text: click.echo(text, err=True),
        )

    def follow_all(self) -> None:
        """Prints what the first node of each job writes until it has ended."""
        jobs = [step for step in self.steps() if step.job]
        prefixes = [f"{step.task} | " if len(jobs) > 1 else "" for step in jobs]
        # Printed by this thread: it is the one that Ctrl-C and a closed pipe end.
        written: queue.Queue[str | StepError | None] = queue.Queue(_AHEAD)
        for step, prefix in zip(jobs, prefixes, strict=True):
            given = (prefix, self.pod_log(step, 0, follow=True), written)
            threading.Thread(target=_pass_on, args=given, daemon=True).start()
        going_on = len(jobs)
        while going_on:
            found = written.get()
            if isinstance(found, StepError):
                raise found
            if found is None:
                going_on -= 1
            else:
                click.echo(found)

    def _pods(self, job: Job) -> dict[int, Object]:
        listed = self._kube.list(POD, labels=job.kind.pod_selector(job.name))
        own = [pod for pod in listed if job.kind.owns_pod(pod, job.manifest)]
        return {job.kind.node_of(job.manifest, pod): pod for pod in job.kind.in_order(own)}


def _pass_on(prefix: str, lines: Iterable[str], to: queue.Queue[str | StepError | None]) -> None:
    """Puts lines into a queue; at their end None, or the error that ended them."""
    try:
        for line in lines:
            to.put(prefix + line)
    except StepError as error:
        to.put(error)
    else:
        to.put(None)


def _step_ids(folder: Path) -> list[str]:
    """The labels of the jobs of a run whose steps ran on this machine; none if there is no such."""
    if not (folder / RUN_FILE).is_file():
        return []
    attempts = local.LocalRun(folder).attempts()
    jobs = [job_of(each.function, each.task, each.inputs, each.component) for each in attempts]
    return sorted({job.manifest["metadata"]["labels"][STEP_ID_LABEL] for job in jobs if job})


def _none_there(kube: Kube, asked: str, ours: Sequence[Job]) -> str:
    there = [f"{job.name} (run {_run_id(job) or 'unknown'})" for job in ours]
    return (
        f"There is no job {asked!r} in namespace {kube.namespace!r}, and none of a run of that id. "
        f"{f'The newest there: {some(there, NEWEST)}.' if there else ''}\n"
        f"{_WHILE_THEY_EXIST}, and a job that fails is deleted unless its input cleanup is "
        f"'never'. {_IN_THE_UI} -n names another namespace."
    )


def _run_id(job: Job) -> str:
    return str(dig(job.manifest, "metadata", "labels", RUN_ID_LABEL) or "")


def _ours(kube: Kube) -> list[Job]:
    """The jobs that steps made, the newest first. Raises Forbidden: none may be seen."""
    found, refused = _labelled(kube, f"{MANAGED_BY_LABEL}={PREFIX}")
    if refused and not found:
        raise refused[0]
    return found[::-1]


def _labelled(kube: Kube, labels: str) -> tuple[list[Job], list[Forbidden]]:
    """The jobs with these labels, the newest at the end, and the kinds that may not be listed."""
    found: list[Job] = []
    refused: list[Forbidden] = []
    for kind in EVERY_KIND:
        try:
            found += [Job(kind, job) for job in kube.list(kind.resource, labels=labels)]
        except KindAbsent:
            continue
        except Forbidden as error:
            refused.append(error)
    made = sorted(found, key=lambda job: str(dig(job.manifest, "metadata", "creationTimestamp")))
    return made, refused


def _named(kube: Kube, asked: str) -> list[Job]:
    found = []
    for kind in EVERY_KIND:
        try:
            found.append(Job(kind, kube.get(kind.resource, asked)))
        except (NotFound, KindAbsent, Forbidden):
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
        " ".join(reason_not_running(pod).split()),
        counted(restarts, "restart") if restarts else "",
        describe_exit_code(codes[0]) if codes else "",
    ]
    return f"{name(pod)}: {', '.join(filter(None, words))}"
