"""`JobKind`: all that the launcher needs to know of a kind of job. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.launcher.inputs.datasets import DataSet
from kfp_pytorch.launcher.inputs.scheduling.scheduler import Scheduling
from kfp_pytorch.launcher.inputs.source import Source
from kfp_pytorch.launcher.inputs.storage import Location
from kfp_pytorch.launcher.jobs.state import JobState
from kfp_pytorch.launcher.kubernetes import admission
from kfp_pytorch.launcher.kubernetes.events import event_object
from kfp_pytorch.launcher.kubernetes.objects import Object, name, parse_time
from kfp_pytorch.launcher.kubernetes.pod_status import (
    ContainerEnd,
    belongs_to,
    container_ends,
    deletion_requested,
)


class JobInputs:
    """What the checked inputs of any kind of job give; a frozen dataclass declares them.

    Attributes:
        name: The readable part of the job's name.
        namespace: The job's namespace; empty for the launcher's own.
        image: The training image.
        num_nodes: How many pods train.
        nproc_per_node: Processes a pod: a number, or `auto`, `cpu` or `gpu`.
        hyperparameters: Further arguments of the program, by name.
        output_uri: Where jobs keep their folders.
        resume_from: Another job's folder to start from.
        queue_timeout: Seconds that the job may be suspended; 0 for no limit, as in the next three.
        start_timeout: Seconds until every pod must run.
        timeout: Seconds that the job may run.
        active_deadline: Seconds that the job may take since the operator started it.
        cleanup: When the launcher deletes the job: `on_failure`, `always` or `never`.
        retry_same_error: Whether the program is started again, up to the job's own limit, though it
            failed twice in the same way.
        datasets: The data sets that the job is given, by name.
        scheduling: The scheduler or queue that starts its pods.
        source: The code that the job is given beside its image.
    """

    name: str
    namespace: str
    image: str
    num_nodes: int
    nproc_per_node: str
    hyperparameters: Mapping[str, str]
    output_uri: Location
    resume_from: Location | None
    queue_timeout: int
    start_timeout: int
    timeout: int
    active_deadline: int
    cleanup: str
    retry_same_error: bool = False
    datasets: Mapping[str, DataSet] = MappingProxyType({})
    scheduling: Scheduling = Scheduling()
    source: Source = Source()

    @property
    def gpus(self) -> int:
        """Accelerators a node."""
        raise NotImplementedError

    @property
    def resizes(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return False

    @property
    def a_rank_reports(self) -> bool:
        """Whether the process whose message is the job's is one of those that train."""
        return True

    @property
    def places(self) -> dict[str, Location]:
        """Where the pods read and write, by what says so."""
        given = {"output_uri": self.output_uri, "resume_from": self.resume_from}
        return {name: place for name, place in given.items() if place}

    def folder(self, job_name: str) -> Location:
        """Return the job's own folder."""
        raise NotImplementedError

    def spec(self) -> dict[str, Any]:
        """Return what the job is made of in JSON form, to be hashed."""
        raise NotImplementedError


@dataclass(frozen=True)
class InitContainer:
    """An init container that the operator itself adds to pods.

    Attributes:
        name: Its name.
        image_advice: What to do where its image cannot be pulled.
        security_advice: What to do where a security policy refuses it.
    """

    name: str
    image_advice: str
    security_advice: str


@dataclass(frozen=True)
class JobKind:
    """A kind of job: values and pure functions of its objects.

    Attributes:
        resource: The resource type.
        operator: The name of what runs such jobs.
        install_advice: What to do where the cluster does not know the kind.
        operator_pods: The kubectl command that lists the operator's pods.
        container: The container that trains.
        init_container: The init container that the operator adds, or None.
        parse_inputs: Checks the component's inputs.
        longest_suffix: The longest suffix that is added to the job's name, by the inputs.
        build: Makes the object from the inputs and, as keywords, `job_name`, `labels`,
            `annotations` and `owner`.
        read_state: Reads the job's state.
        expected_pods: How many pods must run for the job to be running; 0 where they are not here.
        pod_selector: The label selector of the pods of a job of this name.
        pod_templates: The pod templates in a job.
        first_pod: The name of the job's first pod, by the job and the pods that were seen; empty
            while it is not known.
        replica: A pod's role and index, for the order of pods and the prefix of log lines.
        node_of: The number of the node that a pod is in a job, from 0.
        node_name: The name of the pod that is the node of this number, as far as it is known.
        name_end: A pattern of what follows that in the pod's own name, such as `-?????`.
        num_nodes: How many nodes a job has.
        processes_per_node: How many processes each has; 0 where the job does not say.
        recreates: Whether the operator recreates a pod of this job that ended with this code.
        is_final: Whether a pod of this job in phase Failed stays so: neither the operator nor the
            kubelet starts it again.
        restart_limit: How often pods of a job may be recreated before the launcher ends it; 0
            leaves that to the operator.
        restart_limit_input: The input that sets it.
        keep_pods_advice: What to do so that the pods stay after a failure.
        unread_result_advice: What to do where a job's pods were gone before they were read.
        owns_pod: Whether a pod is of this job, and not of an earlier one of its name.
        propagation: How a job is deleted: `Foreground`, so that it stays until its pods are gone,
            or `Background`, where the operator would make its parts again meanwhile.
        makers: The names of the objects that make the pods of a job of this name, whose events say
            why pods are missing.
        refusal_reasons: How the reasons of such events begin.
        newer_fields: What to do where the cluster's kind lacks a field that `build` sets unasked,
            by its path.
        is_harmless: Whether the message of such an event tells of nothing that is wrong.
    """

    resource: Kind
    operator: str
    install_advice: str
    operator_pods: str
    container: str
    parse_inputs: Callable[..., JobInputs]
    longest_suffix: Callable[[Any], str]
    build: Callable[..., Object]
    read_state: Callable[[Object], JobState]
    expected_pods: Callable[[Object], int]
    pod_selector: Callable[[str], str]
    pod_templates: Callable[[Object], list[Object]]
    first_pod: Callable[[Object, Sequence[Object]], str]
    replica: Callable[[Object], tuple[str, int]]
    node_of: Callable[[Object, Object], int]
    node_name: Callable[[Object, int], str]
    num_nodes: Callable[[Object], int]
    processes_per_node: Callable[[Object], int]
    recreates: Callable[[Object, int], bool]
    restart_limit: Callable[[Object], int]
    is_final: Callable[[Object, Object], bool] = lambda _job, _pod: False
    restart_limit_input: str = ""
    init_container: InitContainer | None = None
    keep_pods_advice: str = (
        "To look at the pods yourself, start the step again with cleanup 'never'."
    )
    unread_result_advice: Callable[[Object], str] = lambda _job: ""
    owns_pod: Callable[[Object, Object], bool] = belongs_to
    propagation: str = "Foreground"
    name_end: str = ""
    makers: Callable[[str], tuple[str, ...]] = lambda job_name: (job_name,)
    refusal_reasons: tuple[str, ...] = ("FailedCreate",)
    newer_fields: Mapping[str, str] = field(default_factory=dict)
    is_harmless: Callable[[str], bool] = lambda _message: False

    @property
    def kubectl_name(self) -> str:
        """The kind as kubectl takes it."""
        return self.resource.kind.lower()

    def title(self, job_name: str) -> str:
        """Name a job with its kind."""
        return f"{self.resource.kind} {job_name}"

    def workload_prefix(self, job_name: str) -> str:
        """Return how the name of Kueue's Workload of a job begins; a hash follows."""
        return f"{self.kubectl_name}-{job_name}-"

    def in_order(self, pods: Iterable[Object]) -> list[Object]:
        """Sort pods by role and index: the first pod first."""
        return sorted(pods, key=lambda pod: (*self.replica(pod), name(pod)))

    def is_about_pods(self, event: Object, job_name: str) -> bool:
        """Return whether an event is of what makes a job's pods."""
        return event_object(event) in self.makers(job_name)

    def trains(self, end: ContainerEnd) -> bool:
        """Return whether an end is of the container that trains; one that is not named is."""
        return end.container in (self.container, "")

    def has_trained(self, pod: Object) -> bool:
        """Return whether training succeeded in a pod before anybody deleted the pod."""
        ends = [end for end in container_ends(pod) if end.container == self.container]
        finished = [
            parse_time(end.finished_at) for end in ends if end.current and not end.exit_code
        ]
        deleted = deletion_requested(pod)
        return any(deleted is None or (at is not None and at <= deleted) for at in finished)

    def refusal_advice(self, message: str) -> str:
        """Return what to do about the refusal of a pod, by the server's message."""
        added: Mapping[str, str] = {}
        if self.init_container:
            added = {self.init_container.name: self.init_container.security_advice}
        return admission.advice(message, container=self.container, added=added)
