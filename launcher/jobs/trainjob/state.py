"""Reads a TrainJob: its state and its pods. No I/O.

A TrainJob has no condition that says that it runs: the numbers of its jobs do. They count jobs, not
pods, and may stay as they were when it has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from kfp_pytorch.launcher.constants import NODE_CONTAINER
from kfp_pytorch.launcher.jobs.state import JobState, Phase, latest_transition, true_conditions
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each, name, parse_time
from kfp_pytorch.launcher.kubernetes.pod_status import is_terminating

# spec.managedBy of a job that the Trainer itself runs.
MANAGER = "trainer.kubeflow.org/trainjob-controller"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
# The jobs that an initializer adds, by its name in the spec.
INITIALIZERS = {"dataset": "dataset-initializer", "model": "model-initializer"}
# The first that is True decides.
_ENDS = (("Failed", Phase.FAILED), ("Complete", Phase.SUCCEEDED), ("Suspended", Phase.QUEUED))
# Comes with every job that a queue takes its pods from.
_HARMLESS = "template.metadata: Invalid value"


def read_state(job: Object) -> JobState:
    """Read the state of a TrainJob, whose status may be absent or incomplete."""
    deleting = bool(dig(job, "metadata", "deletionTimestamp"))
    conditions = each(job, "status", "conditions")
    true = true_conditions(conditions, ("Failed", "Complete"))
    for kind, phase in _ENDS:
        if kind in true:
            return JobState(
                phase=phase,
                reason=str(true[kind].get("reason") or ""),
                message=str(true[kind].get("message") or ""),
                since=latest_transition([true[kind]]),
                deleting=deleting,
            )
    # That it was resumed is a condition that stays.
    since = latest_transition(conditions)
    return JobState(_phase(job, conditions), since=since, deleting=deleting)


def _phase(job: Object, conditions: list[Object]) -> Phase:
    jobs = {str(item.get("name")): item for item in each(job, "status", "jobsStatus")}
    trains = jobs.get(NODE_CONTAINER) or {}
    if dig(job, "spec", "suspend") is True:
        return Phase.QUEUED
    if _count(trains, "active") and _count(trains, "ready"):
        return Phase.RUNNING
    return Phase.STARTING if jobs or conditions else Phase.UNACKNOWLEDGED


def _count(job_status: Object, field: str) -> int:
    count = job_status.get(field)
    return count if isinstance(count, int) else 0


def expected_pods(job: Object) -> int:
    """How many pods must run, or have succeeded, for the job to be running.

    Initializers succeed before. Returns 0 for a job that another controller runs in another cluster
    (MultiKueue): its pods are not here.
    """
    if dig(job, "spec", "managedBy") not in (None, "", MANAGER):
        return 0
    initializers = dig(job, "spec", "initializer") or {}
    return num_nodes(job) + sum(part in initializers for part in INITIALIZERS)


def num_nodes(job: Object) -> int:
    """How many nodes train."""
    count = dig(job, "spec", "trainer", "numNodes")
    return count if isinstance(count, int) else 1


def processes_per_node(job: Object) -> int:
    """How many processes each node has; 0 where the job does not say."""
    count = dig(job, "spec", "trainer", "numProcPerNode")
    return count if isinstance(count, int) else 0


def pod_selector(job_name: str) -> str:
    """The label selector of the pods of a job of this name, those of its initializers included."""
    return f"{JOBSET_LABEL}={job_name}"


def owns_pod(pod: Object, job: Object) -> bool:
    """Whether a pod is of this job, not of an earlier one of its name.

    The Trainer makes a JobSet, that makes a Job, and that the pods: none names the TrainJob's uid.
    """
    if dig(pod, "metadata", "labels", JOBSET_LABEL) != name(job):
        return False
    made = [parse_time(dig(obj, "metadata", "creationTimestamp")) for obj in (pod, job)]
    return made[0] is None or made[1] is None or made[0] >= made[1]


def replica(pod: Object) -> tuple[str, int]:
    """A pod's job, such as `node`, and its index in it."""
    index = str(dig(pod, "metadata", "labels", INDEX_LABEL) or "")
    role = str(dig(pod, "metadata", "labels", JOB_LABEL) or "")
    return role, int(index) if index.isdecimal() else 0


def node_of(_job: Object, pod: Object) -> int:
    """The number of the node that a pod is; -1 for an initializer's."""
    job, index = replica(pod)
    return index if job == NODE_CONTAINER else -1


def first_pod(_job: Object, pods: Sequence[Object]) -> str:
    """The name of the pod of node 0, of several the newest; empty while there is none.

    A pod's name has a random end, and a suspended pod may run beside its successor.
    """
    found = [pod for pod in pods if replica(pod) == (NODE_CONTAINER, 0)]
    return name(max(found, key=_newness, default={}))


def _newness(pod: Object) -> tuple[bool, str]:
    created = str(dig(pod, "metadata", "creationTimestamp") or "")
    return not is_terminating(pod), created


def node_name(job: Object, node: int) -> str:
    """The host name of a node's pod, with which the pod's name begins."""
    return f"{name(job)}-{NODE_CONTAINER}-0-{node}"


def makers(job_name: str) -> tuple[str, ...]:
    """The names of the TrainJob and its JobSet, and of the Jobs of the JobSet."""
    jobs = (NODE_CONTAINER, *INITIALIZERS.values())
    return (job_name, *(f"{job_name}-{each}-0" for each in jobs))


def is_harmless(message: str) -> bool:
    """Whether an event of a failure is of the kind that comes with every preemption."""
    return _HARMLESS in message
