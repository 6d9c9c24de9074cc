"""The roles of a job's pods, as `Master` and `Worker`: their number, order, names. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher.jobs.trainingoperator import labels
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, name

# runPolicy.managedBy of a job that the Training Operator itself runs.
OPERATOR = "kubeflow.org/training-operator"


@dataclass(frozen=True)
class Roles:
    """The roles that the pods of a kind of job may have."""

    field: str  # of the spec, such as `pytorchReplicaSpecs`
    names: tuple[str, ...]  # as the spec has them; the first pod is of the first that a job has
    unnumbered: str = ""  # the role whose only pod has no number in its name

    def specs(self, job: Object) -> dict[str, Object]:
        """Return what a job says of each of its roles, in the order of nodes."""
        found = dig(job, "spec", self.field)
        given = found if isinstance(found, dict) else {}
        unknown = [role for role in given if role not in self.names]
        ordered = [role for role in (*self.names, *unknown) if role in given]
        return {role: given[role] if isinstance(given[role], dict) else {} for role in ordered}

    def expected_pods(self, job: Object) -> int:
        """Return how many pods must run for the job to be running.

        The sum of the replicas; of an elastic job, the least that it may run with. 0 for a job that
        another controller runs in another cluster (MultiKueue): its pods are not here.
        """
        if dig(job, "spec", "runPolicy", "managedBy") not in (None, "", OPERATOR):
            return 0
        least = dig(job, "spec", "elasticPolicy", "minReplicas")
        return least if isinstance(least, int) else sum(self._counts(job).values())

    def num_nodes(self, job: Object) -> int:
        """Return how many pods the job has."""
        counts = [spec.get("replicas") for spec in self.specs(job).values()]
        return sum(count for count in counts if isinstance(count, int))

    def pod_templates(self, job: Object) -> list[Object]:
        """Return the pod templates of all roles."""
        found = [spec.get("template") for spec in self.specs(job).values()]
        return [template for template in found if isinstance(template, dict)]

    def first_pod(self, job: Object) -> str:
        """Return the name of the job's first pod."""
        return self.node_name(job, 0)

    def node_name(self, job: Object, node: int) -> str:
        """Return the name of a node's pod; past the last one, it is of the last role."""
        counts = self._counts(job) or {self.names[-1]: 1}
        role = next(iter(counts))
        for role, count in counts.items():
            if node < count or role == list(counts)[-1]:
                break
            node -= count
        end = "" if role == self.unnumbered else f"-{node}"
        return f"{name(job)}-{role.lower()}{end}"

    def node_of(self, job: Object, pod: Object) -> int:
        """Return the number of the node that a pod is."""
        role, index = labels.replica(pod)
        before = 0
        for each, count in self._counts(job).items():
            if each.lower() == role:
                return before + index
            before += count
        return index

    def longest_suffix(self, counts: dict[str, int]) -> str:
        """Return the longest that the operator adds to the job's name for a pod."""
        ends = [
            f"-{role.lower()}" + ("" if role == self.unnumbered else f"-{count - 1}")
            for role, count in counts.items()
            if count
        ]
        return max(reversed(ends), key=len, default="")

    def _counts(self, job: Object) -> dict[str, int]:
        counts = {role: spec.get("replicas") for role, spec in self.specs(job).items()}
        return {role: count if isinstance(count, int) else 1 for role, count in counts.items()}
