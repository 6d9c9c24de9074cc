"""The step `pytorch_job`: one PyTorchJob from its inputs to a Model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kfp_pytorch.launcher.constants import (
    ATTEMPT_ANNOTATION,
    CLAIM,
    PYTORCHJOB,
    SPEC_HASH_LABEL,
)
from kfp_pytorch.launcher.diagnosis.message import diagnose
from kfp_pytorch.launcher.errors import CannotObserve, InputError, JobFailed, StepError
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import PyTorchJobInputs, parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import longest_suffix, manifest
from kfp_pytorch.launcher.jobs.termination_messages import read_messages
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube, connect
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.outputs.artifacts import Artifact, Places, write_outputs
from kfp_pytorch.launcher.outputs.report import render
from kfp_pytorch.launcher.runtime import stopping
from kfp_pytorch.launcher.runtime.identity import Identity, Step, identify, own_pod_name, whoami
from kfp_pytorch.launcher.runtime.printing import log, printable
from kfp_pytorch.launcher.runtime.stopping import Stopper, Target, delete_by_uid
from kfp_pytorch.launcher.waiting.ensure import Ensured, ensure
from kfp_pytorch.launcher.waiting.gather import Gatherer
from kfp_pytorch.launcher.waiting.limits import Limits
from kfp_pytorch.launcher.waiting.wait import End, Wait, announce

# A signal finds out here what must not outlive the step, however early it comes.
HAS_TARGET = True


class ModelArtifact(Artifact, Protocol):
    """The Model, whose URI is what tells this step from every other."""

    uri: str


@dataclass(frozen=True)
class Artifacts:
    """The output artifacts of the step."""

    model: ModelArtifact
    metrics: Artifact
    curves: Artifact
    report: Artifact


def run(
    model: ModelArtifact, metrics: Artifact, curves: Artifact, report: Artifact, **inputs: Any
) -> Places:
    """Trains with a PyTorchJob and waits for its end.

    Args:
        model: Gets what training exported, in short.
        metrics: Gets the final metrics.
        curves: Gets the curves as a page.
        report: Gets what ran, also when it failed.
        **inputs: The component's inputs.

    Returns:
        Where the model's export and the job's folder are.

    Raises:
        InputError: An input cannot work.
        JobFailed: The job did not succeed; the message says why.
        StepError: The cluster did not let it come about; the message says how.
    """
    checked = parse_inputs(**inputs)
    kube = connect(checked.namespace, notify=log)
    outputs = Artifacts(model, metrics, curves, report)
    return train(kube, checked, outputs, limits_of(checked), stopping.current())


def limits_of(inputs: PyTorchJobInputs) -> Limits:
    """Return the limits of the wait that the inputs ask for.

    Args:
        inputs: The checked inputs.
    """
    return Limits(
        queue=inputs.queue_timeout,
        start=inputs.start_timeout,
        run=inputs.timeout,
        # The operator does not count pods that it makes anew; a backoffLimit of 0 is 1 to it.
        restarts=max(1, inputs.backoff_limit) if inputs.restart_policy == "ExitCode" else 0,
    )


def train(
    kube: Kube, inputs: PyTorchJobInputs, outputs: Artifacts, limits: Limits, stopper: Stopper
) -> Places:
    """Does what `run` does, with everything given.

    Args:
        kube: The cluster.
        inputs: The checked inputs.
        outputs: The artifacts.
        limits: The limits of the wait.
        stopper: Ends the step when a signal comes.

    Returns:
        Where the model's export and the job's folder are.
    """
    suffix, uri, spec = longest_suffix(inputs), outputs.model.uri, inputs.spec()
    # The run's id is a label only: the job is known, and may be deleted, before it is.
    known = identify(inputs.name, uri, suffix, "", spec)
    keep = inputs.cleanup == "never"
    target = Target(kube, PYTORCHJOB, known.name, known.owns, own_pod_name(), keep)
    stopper.set_target(target)
    step = whoami(kube)
    identity = identify(inputs.name, uri, suffix, step.run_id, spec)
    check_claims(kube, inputs)

    build = partial(_build, inputs, identity, step, kube)
    try:
        ensured = ensure(kube, build, target, stopper, limits)
        announce(ensured, kube.namespace)
        gatherer = Gatherer(kube, ensured.job, limits)
        gatherer.note(step.note)
        gatherer.note(_other_inputs(ensured, identity))
        submitted = build(ensured.attempt)
        _follow(kube, ensured, limits, gatherer, inputs, outputs, submitted)
    except CannotObserve as error:
        stopper.clear_target()
        raise _left_alone(error, target) from error
    except BaseException:
        _end(kube, target, inputs, stopper, succeeded=False)
        raise
    places = _hand_on(outputs, gatherer, inputs, submitted)
    _end(kube, target, inputs, stopper, succeeded=True)
    return places


def _follow(
    kube: Kube,
    ensured: Ensured,
    limits: Limits,
    gatherer: Gatherer,
    inputs: PyTorchJobInputs,
    outputs: Artifacts,
    submitted: Object,
) -> None:
    """Waits for the job's end, and reads what it left."""
    end = Wait(kube, ensured, limits, gatherer).run()
    if end.cause:
        raise _failure(end, gatherer, inputs, outputs, submitted)
    # The pods' messages are the result: a server that is away at the very end is waited for.
    gatherer.look_again(kube)


def _left_alone(error: CannotObserve, target: Target) -> CannotObserve:
    job = f"PyTorchJob {target.kube.namespace}/{target.name}"
    if not target.uid:
        return CannotObserve(
            f"{error.message}\nWhether {job} was made is not known: look for it when the cluster "
            "answers again. The next try of this step takes it up."
        )
    return CannotObserve(
        f"{error.message}\n{job} was left as it is: it may still run. The next try of this step "
        "takes it up."
    )


def check_claims(kube: Kube, inputs: PyTorchJobInputs) -> None:
    """Refuses a claim that is not there: pods that want it would wait for ever.

    Args:
        kube: The cluster.
        inputs: The checked inputs.

    Raises:
        InputError: There is no such claim.
    """
    for name, place in (("output_uri", inputs.output_uri), ("resume_from", inputs.resume_from)):
        if place is None or not place.on_claim:
            continue
        try:
            kube.get(CLAIM, place.host)
        except NotFound:
            raise InputError(
                f"{name} is {place.uri!r}, but namespace {kube.namespace!r} has no "
                f"PersistentVolumeClaim {place.host!r}. Create the claim, or give the name of one "
                f"that is there (`kubectl get pvc -n {kube.namespace}`)."
            ) from None
        except CannotObserve:
            raise
        except ApiError as error:
            log(f"could not check the claim {place.host!r}: {error.short}")


def _other_inputs(ensured: Ensured, identity: Identity) -> str:
    labels = ensured.job["metadata"].get("labels") or {}
    if labels.get(SPEC_HASH_LABEL) == identity.labels[SPEC_HASH_LABEL]:
        return ""
    return "The job that was adopted was made from other inputs than this try of the step has."


def _build(
    inputs: PyTorchJobInputs, identity: Identity, step: Step, kube: Kube, attempt: int
) -> Object:
    # An owner of another namespace is none: the garbage collector would delete the job.
    owned = inputs.cleanup != "never" and step.namespace == kube.namespace
    return manifest(
        inputs,
        job_name=identity.name,
        labels=identity.labels,
        annotations={**identity.annotations, ATTEMPT_ANNOTATION: str(attempt)},
        owner=step.owner if owned else None,
    )


def _failure(
    end: End, gatherer: Gatherer, inputs: PyTorchJobInputs, outputs: Artifacts, submitted: Object
) -> JobFailed:
    """Explains a failure while everything that explains it is still there."""
    gatherer.look_for_causes()
    if end.why != "failed":
        gatherer.timeline.enter("given up", end.cause)
    evidence = gatherer.evidence
    diagnosis = diagnose(evidence, end.cause, end.why)
    outcome = read_messages([*evidence.pods.values(), *evidence.past_pods])
    try:
        # On a cluster it goes with the step; a local run keeps it.
        text = render(evidence, inputs, submitted, outcome, diagnosis.message)
        Path(outputs.report.path).write_text(printable(text), encoding="utf-8")
    except Exception as error:
        # Whatever is odd about the evidence must not take the place of the diagnosis.
        log(f"the report could not be written: {type(error).__name__}: {error}")
    return JobFailed(diagnosis.message, diagnosis.short)


def _hand_on(
    outputs: Artifacts, gatherer: Gatherer, inputs: PyTorchJobInputs, submitted: Object
) -> Places:
    evidence = gatherer.evidence
    return write_outputs(
        model=outputs.model,
        metrics=outputs.metrics,
        curves=outputs.curves,
        report=outputs.report,
        evidence=evidence,
        inputs=inputs,
        manifest=submitted,
        outcome=read_messages([*evidence.pods.values(), *evidence.past_pods]),
    )


def _end(
    kube: Kube, target: Target, inputs: PyTorchJobInputs, stopper: Stopper, *, succeeded: bool
) -> None:
    """Deletes the job where `cleanup` says so; nothing that goes wrong here changes the outcome."""
    stopper.check()
    if not target.uid:
        # None was made, or the one that is there is another's.
        stopper.clear_target()
        return
    wanted = {"always": True, "on_failure": not succeeded, "never": False}[inputs.cleanup]
    if wanted:
        try:
            if delete_by_uid(kube, PYTORCHJOB, target.name, target.uid):
                log(f"deleted PyTorchJob {kube.namespace}/{target.name}")
        except StepError as error:
            log(f"PyTorchJob {target.name} could not be deleted; do it by hand: {error.short}")
    stopper.clear_target()
