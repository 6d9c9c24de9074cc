"""The jobs of a run's steps, and where their folders and the logs of their ranks are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.jobs.distributed import component as distributed
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.registry import STEPS, kind_of
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, name
from kfp_pytorch.launcher.runtime import identity

# That of what runs on the local cluster, unless it names another.
NAMESPACE = "default"
# The inputs that KFP adds to a task whose image or resources are values of the run.
_OF_KFP = {
    *("accelerator_count", "accelerator_type", "base_image"),
    *("cpu_limit", "cpu_request", "memory_limit", "memory_request"),
}


@dataclass(frozen=True)
class Job:
    """A job of a step."""

    kind: JobKind
    manifest: Object  # as it was submitted, or as the cluster has it
    folder: str = ""  # the URI of its folder; empty if it is not known

    @property
    def name(self) -> str:
        """The job's name."""
        return name(self.manifest)

    @property
    def namespace(self) -> str:
        """The namespace that the job names; empty for that of the cluster's credentials."""
        return str(dig(self.manifest, "metadata", "namespace") or "")

    @property
    def nodes(self) -> int:
        """How many pods train."""
        return self.kind.num_nodes(self.manifest)

    @property
    def processes(self) -> int:
        """How many processes each pod has; 0 where the job does not say."""
        return self.kind.processes_per_node(self.manifest)

    def pod(self, node: int) -> str:
        """The name of the pod that is a node, from 0."""
        return self.kind.node_name(self.manifest, node)

    def ranks(self, node: int) -> str:
        """The ranks of a node's processes, such as `rank 2` or `ranks 8-15`."""
        if not self.processes:
            return f"node {node}"
        first = node * self.processes
        last = first + self.processes - 1
        return f"rank {first}" if first == last else f"ranks {first}-{last}"

    def log_files(self, root: Path, node: int, namespace: str) -> list[Path]:
        """The files that a local cluster's kubelet kept of a node's log, the oldest first.

        There is one for each start of the container, and for each pod of this name.
        """
        where, container = self.namespace or namespace, self.kind.container
        pods = f"{self.pod(node)}{self.kind.name_end}"
        found = (root / "logs").glob(f"{where}_{pods}_*/{container}/*.log")
        return sorted((path for path in found if path.stem.isdecimal()), key=_age)


def _age(log: Path) -> tuple[int, int]:
    # A pod of the same name, and a further start, begin when the one before has ended.
    try:
        return log.stat().st_mtime_ns, int(log.stem)
    except FileNotFoundError:
        return 0, int(log.stem)


def job_of(function: str, task: str, inputs: Mapping[str, Any], component: str = "") -> Job | None:
    """Returns the job that a step makes; None for a step that makes none, or that refuses.

    `function`: the function of the step's component. `task`: the file for the outputs of the
    step's program; its artifacts lie beside it. `component`: of a distributed component, what its
    step is told of it; its job is given here without its code.
    """
    known_by = "model"
    if component:
        told = distributed.from_argument(component)
        function, known_by = told.kind, distributed.REPORT
        inputs = {**told.inputs, "command": distributed.COMMAND}
    if function not in STEPS or not task:
        return None
    given = {
        key: value for key, value in inputs.items() if key.isidentifier() and key not in _OF_KFP
    }
    try:
        kind = kind_of(function, given)
        checked = kind.parse_inputs(**given)
        known = identity.identify(
            checked.name, str(Path(task).with_name(known_by)), kind.longest_suffix(checked), "", {}
        )
        made = kind.build(
            checked,
            job_name=known.name,
            labels=known.labels,
            annotations=known.annotations,
            owner=None,
        )
    except (StepError, TypeError):
        return None
    return Job(kind, made, checked.folder(known.name).uri)
