"""Which job is this step's: its name, its labels, its owner. And who this step is.

KFP fixes the URIs of a task's output artifacts once: they stay the same over the retries of a
step, and differ for every other task, loop iteration and run (backend/src/v2/driver). So a name
made of one is the same for every retry and different for every other step.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import CannotObserve, InputError
from kfp_pytorch.launcher.kubernetes.api_errors import ApiError
from kfp_pytorch.launcher.kubernetes.client import Kube
from kfp_pytorch.launcher.kubernetes.objects import Object

NAME_LIMIT = 63
_HASH_LENGTH = 10
_READABLE_MINIMUM = 1


@dataclass(frozen=True)
class Step:
    """The step's own pod and run, as far as they are known.

    Attributes:
        owner: An owner reference to the Workflow that owns the step's pod, or None.
    """

    pod_name: str = ""  # the name of the step's own pod; empty outside of one
    run_id: str = ""  # the id of the KFP run, or empty
    owner: Object | None = None
    namespace: str = ""  # the pod's namespace
    note: str = ""  # what could not be read, and why; or empty


@dataclass(frozen=True)
class Identity:
    """What makes a job this step's own."""

    name: str  # the job's name
    step_id: str  # the hash of the model artifact's URI, as a label's value
    labels: Mapping[str, str]  # the labels of the job and its pods
    annotations: Mapping[str, str]  # the annotations of the job

    def owns(self, obj: Object) -> bool:
        """Whether an object is of this step, of whichever attempt."""
        labels = (obj.get("metadata") or {}).get("labels") or {}
        return labels.get(constants.STEP_ID_LABEL) == self.step_id


def identify(readable: str, model_uri: str, suffix: str, run_id: str, spec: Any) -> Identity:
    """Makes the identity of a step's job.

    `readable`: what a person calls it; made a valid name here. `suffix`: the longest suffix that
    the operator adds to the name. `run_id`: the id of the KFP run, or empty. `spec`: what the job
    is made of, in JSON form, hashed into a label. Raises InputError: the URI is empty, so nothing
    identifies this step; or the suffix leaves no room for a name.
    """
    if not model_uri:
        raise InputError(
            "The step's model artifact has no URI, so its job cannot be told from another's. "
            "Run the component in a pipeline, where KFP gives every output artifact its URI."
        )
    step_id = hashlib.sha256(model_uri.encode()).hexdigest()[:32]
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), default=str)
    labels = {
        constants.MANAGED_BY_LABEL: constants.PREFIX,
        constants.STEP_ID_LABEL: step_id,
        constants.SPEC_HASH_LABEL: hashlib.sha256(text.encode()).hexdigest()[:16],
    }
    if run_id:
        labels[constants.RUN_ID_LABEL] = label_value(run_id)
    return Identity(
        name=job_name(readable, model_uri, suffix),
        step_id=step_id,
        labels=labels,
        annotations={constants.MODEL_URI_ANNOTATION: model_uri},
    )


def job_name(readable: str, model_uri: str, suffix: str) -> str:
    """Makes a DNS-1035 name that fits 63 characters with the operator's longest suffix.

    The webhook checks the job's name only, not those of the pods and services made from it. The
    name is the readable part, cut and in lower case, a dash and ten digits of the hash. Raises
    InputError: if nothing readable is left, or no room for it.
    """
    room = NAME_LIMIT - len(suffix) - _HASH_LENGTH - 1
    if room < _READABLE_MINIMUM:
        raise InputError(
            f"The operator's suffix {suffix!r} leaves no room for a job's name: pods and services "
            f"may have at most {NAME_LIMIT} characters. Use fewer nodes."
        )
    plain = re.sub(r"[^a-z0-9]+", "-", readable.lower()).strip("-")
    if not plain:
        raise InputError(
            f"The name {readable!r} has no letter or digit that a job's name may have (a-z, 0-9)."
        )
    if not plain[0].isalpha():
        plain = f"j-{plain}"
    digest = hashlib.sha256(model_uri.encode()).hexdigest()[:_HASH_LENGTH]
    return f"{plain[:room].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """Makes a valid label value: at most 63 of `[A-Za-z0-9._-]`, with no mark at either end."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:NAME_LIMIT].strip("-._")


def own_pod_name(environ: Mapping[str, str] = os.environ) -> str:
    """The name of the step's own pod, where KFP puts it; empty outside of one."""
    return environ.get(constants.KFP_POD_NAME_ENV, "")


def whoami(kube: Kube, environ: Mapping[str, str] = os.environ) -> Step:
    """Finds out who this step is, from its own pod.

    `environ`: the environment; KFP puts the pod's name and uid there. Returns what could be
    learned; outside of a pod, or where the pod may not be read, little.
    """
    name, uid = own_pod_name(environ), environ.get(constants.KFP_POD_UID_ENV, "")
    if not name:
        return Step()
    try:
        pod = kube.get(constants.POD, name, namespace=kube.own_namespace)
    except CannotObserve:
        raise
    except ApiError as error:
        note = f"The step's own pod could not be read, so the job has no owner: {error.message}"
        return Step(pod_name=name, namespace=kube.own_namespace, note=note)
    metadata = pod["metadata"]
    if uid and metadata.get("uid") != uid:
        note = f"The pod {name!r} is another one than this step's, so the job has no owner."
        return Step(pod_name=name, namespace=kube.own_namespace, note=note)
    return Step(
        pod_name=name,
        run_id=(metadata.get("labels") or {}).get(constants.KFP_RUN_ID_LABEL, ""),
        owner=_workflow(metadata.get("ownerReferences") or []),
        namespace=kube.own_namespace,
    )


def _workflow(references: list[Object]) -> Object | None:
    """The reference to the Workflow, as the job may carry it.

    With `blockOwnerDeletion` true it would need `update` on workflows/finalizers where
    OwnerReferencesPermissionEnforcement is on.
    """
    for reference in references:
        if reference.get("kind") == constants.WORKFLOW.kind:
            kept = {key: reference[key] for key in ("apiVersion", "kind", "name", "uid")}
            return kept | {"controller": False, "blockOwnerDeletion": False}
    return None
