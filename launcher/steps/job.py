"""A step that runs one job of a kind, from its inputs to a Model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from kfp_pytorch.launcher.constants import ATTEMPT_ANNOTATION, REPLACE_OTHER_ENV
from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.diagnosis.same_error import failed_twice
from kfp_pytorch.launcher.errors import CannotObserve, JobFailed, StepError
from kfp_pytorch.launcher.jobs.adoption import other_inputs
from kfp_pytorch.launcher.jobs.kind import JobInputs, JobKind
from kfp_pytorch.launcher.jobs.pods import source_files
from kfp_pytorch.launcher.jobs.termination_messages import Outcome, read_messages
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.outputs.artifacts import Artifacts, Places
from kfp_pytorch.launcher.outputs.exports import wrong_export
from kfp_pytorch.launcher.outputs.report import render
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.identity import Identity, Step, identify, own_pod_name, whoami
from kfp_pytorch.launcher.runtime.printing import log, printable
from kfp_pytorch.launcher.runtime.stopping import Stopper, Target, delete_by_uid
from kfp_pytorch.launcher.steps.claims import check_claim
from kfp_pytorch.launcher.text import for_resume
from kfp_pytorch.launcher.waiting.ensure import Ensured, ensure
from kfp_pytorch.launcher.waiting.evidence import Evidence
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.launcher.waiting.prerequisites import schedulers
from kfp_pytorch.launcher.waiting.prerequisites.source_files import SourceFiles
from kfp_pytorch.launcher.waiting.wait import End, Wait, announce

Prepare = Callable[[Kube, Any, str], Any]
"""Makes inputs fit the cluster before a job of this name is created, or adopted."""
Failed = Callable[[Evidence], str]
"""Says why a job whose program has failed is not let go on; or nothing."""


def as_given(_kube: Kube, inputs: JobInputs, _job_name: str) -> JobInputs:
    """Leaves inputs as they are: a `Prepare`."""
    return inputs


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Outputs(Protocol[T_co]):
    """What a step makes of a job that succeeded."""

    @property
    def report(self) -> Artifact:
        """The artifact that tells what ran."""

    @property
    def identity(self) -> str:
        """The URI that the step is known by."""

    def write(self, evidence: Evidence, inputs: Any, manifest: Object, outcome: Outcome) -> T_co:
        """Writes the artifacts; returns the output parameters."""


def run_job(
    kind: JobKind, outputs: Artifacts, inputs: Mapping[str, Any], prepare: Prepare = as_given
) -> Places:
    """Trains with a job of a kind and waits for its end.

    `prepare`: reads of the cluster what the job depends on. Returns where the model's export and
    the job's folder are. Raises InputError: an input cannot work. Raises JobFailed: the job did not
    succeed; the message says why. Raises StepError: the cluster did not let the job run; the
    message says how.
    """
    return run_checked(kind, outputs, kind.parse_inputs(**inputs), prepare)


def run_checked(
    kind: JobKind,
    outputs: Outputs[T],
    inputs: JobInputs,
    prepare: Prepare = as_given,
    failed: Failed = failed_twice,
) -> T:
    """Does what `run_job` does, with inputs that are checked.

    `failed`: what ends a job whose program has failed, unless `retry_same_error` is set.
    """
    kube = connect(inputs.namespace, notify=log)
    limits, stopper = limits_of(inputs), stopping.current()
    return train(kind, kube, inputs, outputs, limits, stopper, prepare, failed)


def limits_of(inputs: JobInputs) -> Limits:
    """Return the limits of the wait that the inputs ask for."""
    return Limits(
        queue=inputs.queue_timeout,
        start=inputs.start_timeout,
        run=inputs.timeout,
        active=inputs.active_deadline,
    )


def train(
    kind: JobKind,
    kube: Kube,
    inputs: JobInputs,
    outputs: Outputs[T],
    limits: Limits,
    stopper: Stopper,
    prepare: Prepare = as_given,
    failed: Failed = failed_twice,
) -> T:
    """Does what `run_checked` does, with everything given.

    Returns what the outputs' `write` does.
    """
    suffix, uri, spec = kind.longest_suffix(inputs), outputs.identity, inputs.spec()
    # The run's id is a label only: the job is known, and may be deleted, before it is.
    known = identify(inputs.name, uri, suffix, "", spec)
    keep = inputs.cleanup == "never"
    folder = inputs.folder(known.name)
    target = Target(
        kube,
        kind.resource,
        known.name,
        known.owns,
        own_pod_name(),
        keep,
        folder=folder.uri,
        propagation=kind.propagation,
    )
    stopper.set_target(target)
    step = whoami(kube)
    identity = identify(inputs.name, uri, suffix, step.run_id, spec)
    _check_claims(kube, inputs)
    schedulers.check_installed(kube, inputs)
    inputs = prepare(kube, inputs, known.name)

    owner = _owner(step, inputs, kube)

    def build(attempt: int) -> Object:
        return _build(kind, inputs, identity, owner, attempt)

    files = SourceFiles(kube, kind, _config_map(inputs, identity), owner)
    try:
        ensured = _ensure(kube, kind, build, target, stopper, limits, files)
        if ensured.how != "finished":
            schedulers.ensure_pod_group(kube, kind, inputs, ensured.job, limits)
        announce(ensured, kind.title(f"{kube.namespace}/{known.name}"), folder.uri)
        gatherer = Gatherer(kube, kind, ensured.job, limits)
        gatherer.evidence.folder = folder.uri
        gatherer.note(step.note)
        submitted = build(ensured.attempt)
        for warning in (
            other_inputs(kind, ensured.job, submitted),
            schedulers.not_queued(kind, ensured),
        ):
            if warning:
                log(f"warning: {warning}")
                gatherer.note(warning)
        end = Wait(
            kube, ensured, limits, gatherer, _never if inputs.retry_same_error else failed
        ).run()
        if end.cause:
            raise _failure(end, gatherer, inputs, outputs, submitted)
        gatherer.read_result(kube)
        if wrong := wrong_export(_outcome(gatherer.evidence), folder, kube.namespace):
            raise _failure(End(end.state, wrong, "export"), gatherer, inputs, outputs, submitted)
    except CannotObserve as error:
        stopper.clear_target()
        raise _left_alone(error, target) from error
    except BaseException:
        if not target.uid:
            files.drop()
        _end(target, inputs, stopper, succeeded=False)
        raise
    evidence = gatherer.evidence
    places = outputs.write(evidence, inputs, submitted, _outcome(evidence))
    _end(target, inputs, stopper, succeeded=True)
    return places


def _ensure(
    kube: Kube,
    kind: JobKind,
    build: Callable[[int], Object],
    target: Target,
    stopper: Stopper,
    limits: Limits,
    files: SourceFiles,
) -> Ensured:
    replace_other = bool(os.environ.get(REPLACE_OTHER_ENV))
    target.also = files.drop
    ensured = ensure(
        kube,
        kind,
        build,
        target,
        stopper,
        limits,
        before=files.make,
        replace_other=replace_other,
    )
    files.hand_over(ensured.job)
    target.also = None
    return ensured


def _never(_evidence: Evidence) -> str:
    return ""


def _check_claims(kube: Kube, inputs: JobInputs) -> None:
    advice = (
        "Create the claim, or give the name of one that is there (`kubectl get pvc -n "
        f"{kube.namespace}`)."
    )
    for name, place in inputs.places.items():
        if place.on_claim:
            check_claim(kube, place.host, f"{name} is {place.uri!r}", advice)


def _config_map(inputs: JobInputs, identity: Identity) -> Object:
    if not inputs.source.files:
        return {}
    return source_files.config_map(inputs.source, identity.name, identity.labels)


def _owner(step: Step, inputs: JobInputs, kube: Kube) -> Object | None:
    # An owner of another namespace is none: the garbage collector would delete the job.
    owned = inputs.cleanup != "never" and step.namespace == kube.namespace
    return step.owner if owned else None


def _build(
    kind: JobKind, inputs: JobInputs, identity: Identity, owner: Object | None, attempt: int
) -> Object:
    return kind.build(
        inputs,
        job_name=identity.name,
        labels=identity.labels,
        annotations={**identity.annotations, ATTEMPT_ANNOTATION: str(attempt)},
        owner=owner,
    )


def _left_alone(error: CannotObserve, target: Target) -> CannotObserve:
    job = f"{target.kind.kind} {target.kube.namespace}/{target.name}"
    then = f"The next attempt of this step adopts it. Its folder, {for_resume(target.folder)}"
    if not target.uid:
        return CannotObserve(
            f"{error.message}\nWhether {job} was created is not known: look for it when the "
            f"cluster answers again. {then}"
        )
    return CannotObserve(f"{error.message}\n{job} was left as it is: it may still run. {then}")


def _outcome(evidence: Evidence) -> Outcome:
    return read_messages([*evidence.pods.values(), *evidence.past_pods])


def _failure(
    end: End, gatherer: Gatherer, inputs: JobInputs, outputs: Outputs[Any], submitted: Object
) -> JobFailed:
    """Explains a failure while everything that explains it is still there."""
    gatherer.read_causes()
    if end.why != "failed":
        gatherer.timeline.enter("given up", end.cause)
    evidence = gatherer.evidence
    diagnosis = diagnose(evidence, end.cause, end.why)
    try:
        # KFP uploads no artifact of a failed step; a local run keeps it.
        text = render(evidence, inputs, submitted, _outcome(evidence), diagnosis.message)
        write(outputs.report, printable(text))
    except Exception as error:
        # Whatever is odd about the evidence must not take the place of the diagnosis.
        log(f"the report could not be written: {type(error).__name__}: {error}")
    return JobFailed(diagnosis.message, diagnosis.short)


def _end(target: Target, inputs: JobInputs, stopper: Stopper, *, succeeded: bool) -> None:
    """Deletes the job where `cleanup` says so; no error here changes the step's result."""
    stopper.check()
    # Without a uid none was made, or the one that is there is another's.
    wanted = {"always": True, "on_failure": not succeeded, "never": False}[inputs.cleanup]
    if target.uid and wanted:
        kind = target.kind.kind
        try:
            if delete_by_uid(target.kube, target.kind, target.name, target.uid, target.propagation):
                log(f"deleted {kind} {target.kube.namespace}/{target.name}")
        except StepError as error:
            log(f"{kind} {target.name} could not be deleted; do it by hand: {error.short}")
    stopper.clear_target()
