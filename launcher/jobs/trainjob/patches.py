"""Patches of a training runtime, in the form that the cluster's Trainer takes."""

from __future__ import annotations

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import NODE_CONTAINER
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.scheduling.demands import KUEUE_PRIORITY_LABEL, KUEUE_QUEUE_LABEL
from kfp_pytorch.launcher.jobs.trainjob.forms import POD_SPEC, POD_TEMPLATE, RUNTIME, Form
from kfp_pytorch.launcher.jobs.trainjob.inputs import TrainJobInputs
from kfp_pytorch.launcher.jobs.trainjob.state import INITIALIZERS
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each

# Each patch has one manager, a domain and a path.
MANAGER = f"{constants.PREFIX}/launcher"
# Kueue also queues single pods that have its labels.
_OF_QUEUE = (KUEUE_QUEUE_LABEL, KUEUE_PRIORITY_LABEL)
# Stands for the image that the runtime has.
RUNTIME_IMAGE = "runtime"
# The fields of a container that the trainer has, or that stay as they are in any pod.
_ELSEWHERE = (
    *("image", "command", "args", "env", "resources"),
    *("terminationMessagePath", "terminationMessagePolicy"),
)
_WAY_OUT = "Put it into a TrainingRuntime of your own, and name that one as runtime."


def made(inputs: TrainJobInputs, pods: Object) -> list[Object]:
    """Return the patches that make the runtime's pods into these.

    `pods`: the pods' template. Raises InputError: it has what cannot be patched.
    """
    form = inputs.form
    patch: Object = {"spec": _spec(inputs, pods["spec"])}
    # Labels and annotations are for service meshes and people: without them the job runs, too.
    metadata = _metadata(pods["metadata"])
    if form.metadata and metadata:
        patch["metadata"] = metadata
    if form.field == POD_SPEC:
        return [{"targetJobs": [{"name": NODE_CONTAINER}], **patch["spec"]}]
    by_job = {NODE_CONTAINER: patch}
    if form.metadata and metadata:
        # A mesh's proxy would keep an initializer running.
        by_job |= {
            INITIALIZERS[name]: {"metadata": _metadata(pods["metadata"])}
            for name in inputs.initializers
        }
    if form.field == POD_TEMPLATE:
        return [{"targetJobs": [{"name": job}], **part} for job, part in by_job.items()]
    jobs = [{"name": job, "template": {"spec": {"template": part}}} for job, part in by_job.items()]
    template = {"spec": {"replicatedJobs": jobs}}
    return [{"manager": MANAGER, "trainingRuntimeSpec": {"template": template}}]


def _metadata(given: Object) -> Object:
    """Copy labels and annotations, but for the queue's: the job alone waits in the queue."""
    labels = {key: value for key, value in given["labels"].items() if key not in _OF_QUEUE}
    parts = {"labels": labels, "annotations": dict(given["annotations"])}
    return {part: pairs for part, pairs in parts.items() if pairs}


def check_queue(job: Object, pods: Object) -> None:
    """Refuse a queue for the pods alone: their labels for one stay behind. Raises InputError."""
    for key in _OF_QUEUE:
        if key in pods["metadata"]["labels"] and key not in job["metadata"]["labels"]:
            raise InputError(
                f"pod_template_patch.metadata.labels has {key!r}, and a TrainJob waits in a queue "
                "as a whole: use scheduling, as kueue('team-a') returns, or labels."
            )


def find(job: Object) -> Object:
    """Return the metadata and the spec that a job's own patch gives its pods."""
    spec = job.get("spec") or {}
    for patch in each(spec, RUNTIME):
        jobs = each(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")
        named = [part for part in jobs if part.get("name") == NODE_CONTAINER]
        if patch.get("manager") == MANAGER and named:
            return dict(dig(named[0], "template", "spec", "template") or {})
    for patch in each(spec, POD_TEMPLATE)[:1]:
        return {key: patch[key] for key in ("metadata", "spec") if key in patch}
    for patch in each(spec, POD_SPEC)[:1]:
        return {"spec": {key: value for key, value in patch.items() if key != "targetJobs"}}
    return {}


def trains(pods: Object) -> Object:
    """Return the container of a template that trains."""
    found: Object = next(c for c in pods["spec"]["containers"] if c["name"] == NODE_CONTAINER)
    return found


def _spec(inputs: TrainJobInputs, pod: Object) -> Object:
    form = inputs.form
    spec = {key: value for key, value in pod.items() if value and key != "containers"}
    container = {
        key: value
        for key, value in trains({"spec": pod}).items()
        if value and key not in _ELSEWHERE
    }
    if not inputs.security_context:
        # It is the launcher's own choice: where the Trainer has none, the runtime's holds.
        for part, known in ((spec, form.pod), (container, form.container)):
            if "securityContext" not in known:
                part.pop("securityContext", None)
    others = [c["name"] for c in [*pod["containers"], *pod.get("initContainers", [])]]
    others.remove(NODE_CONTAINER)
    if others:
        raise InputError(
            f"pod_template_patch has the container {others[0]!r}; a TrainJob can change the "
            f"containers of its runtime, and add none. {_WAY_OUT}"
        )
    _check(form, spec, form.pod, "pods")
    _check(form, container, form.container, f"container {NODE_CONTAINER!r}")
    return {**spec, "containers": [container]}


def _check(form: Form, part: Object, known: frozenset[str], what: str) -> None:
    unknown = sorted(part.keys() - known)
    if unknown:
        raise InputError(
            f"The {what} of a TrainJob cannot be given {unknown[0]}: with {form.field}, this "
            f"cluster's Trainer takes {', '.join(sorted(known))}. {_WAY_OUT}"
        )
