"""What the causes are derived from: the evidence, and what is read from it once. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kfp_pytorch.launcher.diagnosis import program_errors
from kfp_pytorch.launcher.diagnosis.program_errors import Error
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.state import JobState
from kfp_pytorch.launcher.jobs.termination_messages import read_messages
from kfp_pytorch.launcher.kubernetes import pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import ContainerEnd
from kfp_pytorch.launcher.waiting.evidence import Evidence


@dataclass(frozen=True)
class Cause:
    """Something that may be why a job failed."""

    headline: str  # what it is, as one sentence without its full stop
    advice: str  # what to do about it, as sentences


@dataclass(frozen=True)
class Facts:
    """The evidence of one job, and what several causes read from it.

    Attributes:
        failed_ends: The ends of their containers that were failures, the first to fail first.
    """

    evidence: Evidence  # what was seen of the job
    pods: list[Object]  # its pods as last seen, by rank
    all_pods: list[Object]  # these, and after them those that were replaced
    failed_ends: list[ContainerEnd]
    logs: Mapping[str, str]  # the last lines of each pod's log
    errors: list[Error]  # the errors of the training programs; those about lost peers come last

    @property
    def kind(self) -> JobKind:
        """The job's kind."""
        return self.evidence.kind

    @property
    def state(self) -> JobState:
        """The job's state as last seen."""
        return self.kind.read_state(self.evidence.job)

    @property
    def words(self) -> str:
        """All that the training programs wrote."""
        return "\n".join([*self.logs.values(), *map(str, self.errors)])


def facts_of(evidence: Evidence) -> Facts:
    """Read the facts from the evidence."""
    pods = evidence.kind.in_order(evidence.pods.values())
    all_pods = [*pods, *evidence.past_pods]
    logs = program_errors.readable_logs(evidence)
    return Facts(
        evidence=evidence,
        pods=pods,
        all_pods=all_pods,
        failed_ends=pod_status.failed_ends(all_pods),
        logs=logs,
        errors=program_errors.errors(evidence, read_messages(all_pods), logs),
    )
