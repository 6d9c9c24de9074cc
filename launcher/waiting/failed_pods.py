"""Pods that failed and are not restarted while the operator does not end their job. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from kfp_pytorch.launcher.kubernetes.objects import Object, dig, name
from kfp_pytorch.launcher.kubernetes.pod_status import is_terminating, pod_phase
from kfp_pytorch.launcher.waiting.evidence import Evidence


@dataclass
class FailedPods:
    """Remembers since when each pod has failed that nothing restarts.

    Training Operators before 1.9 do not end such a job under ExitCode.
    """

    grace: float  # how long the operator may take to end the job, in seconds
    _since: dict[str, float] = field(default_factory=dict)

    def fatal(self, evidence: Evidence, now: float) -> str:
        """Finds a failed pod that the operator has not acted on within the grace.

        Returns the pod's name, or an empty string.
        """
        failed = {_uid(pod): pod for pod in _living(evidence) if _is_final(evidence, pod)}
        self._since = {uid: self._since.get(uid, now) for uid in failed}
        late = [uid for uid, since in self._since.items() if now - since >= self.grace]
        return name(failed[late[0]]) if late else ""

    def reset(self) -> None:
        """Begins at 0: during an outage the operator could not act."""
        self._since = {}

    def next_deadline(self) -> float | None:
        """The time at which a pod becomes fatal, or None."""
        return min((since + self.grace for since in self._since.values()), default=None)


def _living(evidence: Evidence) -> list[Object]:
    living = evidence.pods.keys() if evidence.living is None else evidence.living
    return evidence.kind.in_order(pod for key, pod in evidence.pods.items() if key in living)


def _is_final(evidence: Evidence, pod: Object) -> bool:
    failed = pod_phase(pod) == "Failed" and not is_terminating(pod)
    return failed and evidence.kind.is_final(evidence.job, pod)


def _uid(pod: Object) -> str:
    return str(dig(pod, "metadata", "uid") or "")
