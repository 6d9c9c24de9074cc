"""What a job's scheduler needs beside the job: its PodGroup, and a word where a queue is deaf."""

from __future__ import annotations

import time

from kfp_pytorch.launcher.constants import MANAGED_BY_LABEL, PREFIX, Kind
from kfp_pytorch.launcher.errors import InputError, JobFailed
from kfp_pytorch.launcher.inputs.scheduling.demands import KUEUE_QUEUE_LABEL, min_member
from kfp_pytorch.launcher.inputs.scheduling.gang import pod_group
from kfp_pytorch.launcher.jobs.kind import JobInputs, JobKind
from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.kubernetes.api_errors import AlreadyExists, NotFound
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each, name
from kfp_pytorch.launcher.waiting.ensure import Ensured
from kfp_pytorch.launcher.waiting.limits import Limits


def check_installed(kube: Kube, inputs: JobInputs) -> None:
    """Raises InputError where the cluster does not know the PodGroup that the scheduler needs."""
    needed = pod_group(inputs.scheduling, 1, {})
    if needed and not kube.serves(needed[0]):
        asked, group = inputs.scheduling.scheduler, needed[0]
        raise InputError(
            f"scheduling.scheduler is {asked!r}, and the cluster has no {group.kind} of "
            f"{group.api_version}: is that scheduler installed? Its administrator installs it; or "
            "leave scheduling out for the cluster's own scheduler."
        )


def ensure_pod_group(
    kube: Kube, kind: JobKind, inputs: JobInputs, job: Object, limits: Limits
) -> None:
    """Makes the job's PodGroup, where its scheduler needs one.

    It has the job's name. An operator that makes PodGroups itself uses that name too: there is
    never a second, whoever is first. Raises JobFailed: an older job's is not deleted in time.
    """
    members = min_member(inputs.scheduling, kind.expected_pods(job))
    resources = dig(job, "spec", "runPolicy", "schedulingPolicy", "minResources") or {}
    needed = pod_group(inputs.scheduling, members, resources)
    if needed is None:
        return
    group, spec = needed
    started = time.monotonic()
    while not _made(kube, group, _object(kind, group, job, spec), job):
        if time.monotonic() - started > limits.deletion:
            raise JobFailed(
                f"The PodGroup {name(job)} is of an older job and not deleted after "
                f"{limits.deletion:.0f} s. Look at it with `kubectl get {group.plural}."
                f"{group.group} {name(job)} -o yaml`."
            )
        time.sleep(min(1.0, limits.deletion / 4))


def not_queued(kind: JobKind, ensured: Ensured) -> str:
    """Return that Kueue leaves a new job alone that has a queue; empty where it does not.

    Kueue's webhook suspends a job as it is created, so the answer to that says it.
    """
    queue = str(dig(ensured.job, "metadata", "labels", KUEUE_QUEUE_LABEL) or "")
    waits = kind.read_state(ensured.job).phase is Phase.QUEUED
    if ensured.how != "created" or not queue or waits:
        return ""
    framework = f"{kind.resource.group}/{kind.resource.kind.lower()}"
    return (
        f"the job is for the queue {queue!r}, and Kueue did not suspend it: it gets no Workload "
        "and starts at once, whatever the quota. Either Kueue is not installed, or its "
        f"configuration does not have {framework} in integrations.frameworks, or does not manage "
        "this namespace."
    )


def _made(kube: Kube, group: Kind, wanted: Object, job: Object) -> bool:
    try:
        kube.create(group, wanted)
    except AlreadyExists:
        try:
            found = kube.get(group, name(job))
        except NotFound:
            return False
        owners = [owner.get("uid") for owner in each(found, "metadata", "ownerReferences")]
        return job["metadata"]["uid"] in owners
    return True


def _object(kind: JobKind, group: Kind, job: Object, spec: Object) -> Object:
    owner = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.resource.kind,
        "name": name(job),
        "uid": job["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }
    metadata = {
        "name": name(job),
        "labels": {MANAGED_BY_LABEL: PREFIX},
        "ownerReferences": [owner],
    }
    return {
        "apiVersion": group.api_version,
        "kind": group.kind,
        "metadata": metadata,
        "spec": spec,
    }
