"""The inputs of `train_job`: their declaration and their checks.

`manifest.py` makes the TrainJob of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from kfp_pytorch.launcher.inputs import k8s, readers
from kfp_pytorch.launcher.inputs.declaration import declare
from kfp_pytorch.launcher.inputs.scheduling.scheduler import KUEUE
from kfp_pytorch.launcher.jobs.pods import input_readers
from kfp_pytorch.launcher.jobs.pods.inputs import PodInputs, check_processes, parse_pod_inputs
from kfp_pytorch.launcher.jobs.trainjob import field_readers
from kfp_pytorch.launcher.jobs.trainjob.forms import CURRENT, FORMS, Form

MULTIKUEUE = "kueue.x-k8s.io/multikueue"


@dataclass(frozen=True, kw_only=True)
class TrainJobInputs(PodInputs):
    """The checked inputs of `train_job`.

    Attributes:
        form: How the cluster's TrainJobs change their runtime's pods.
    """

    # The pods' scheduler is the runtime's: a TrainJob cannot set it.
    schedulers: ClassVar[tuple[str, ...]] = (KUEUE,)
    scheduler_advice: ClassVar[str] = (
        "A runtime with a podGroupPolicy has its pods started together: name such a one as runtime."
    )

    image: str = declare(k8s.image, "")
    name: str = declare(input_readers.job_name, "train-job")
    nproc_per_node: str = declare(field_readers.process_count, "")
    # A TrainJob cannot set it.
    image_pull_policy: str = ""
    runtime: str = declare(k8s.dns_subdomain, "torch-distributed")
    runtime_kind: str = declare(
        readers.one_of("ClusterTrainingRuntime", "TrainingRuntime"), "ClusterTrainingRuntime"
    )
    dataset_initializer: dict[str, Any] = declare(field_readers.initializer, {})
    model_initializer: dict[str, Any] = declare(field_readers.initializer, {})
    suspend: bool = declare(readers.boolean, False)
    managed_by: str = declare(
        readers.one_of("", "trainer.kubeflow.org/trainjob-controller", MULTIKUEUE), ""
    )
    patch_form: str = declare(readers.one_of("", *FORMS), "")
    form: Form = CURRENT

    @property
    def initializers(self) -> dict[str, dict[str, Any]]:
        """The initializers that are given, by their names in the job's spec."""
        given = {"dataset": self.dataset_initializer, "model": self.model_initializer}
        return {name: initializer for name, initializer in given.items() if initializer}

    def spec(self) -> dict[str, Any]:
        """Return all that the job is made of, in JSON form, whatever the cluster's Trainer."""
        spec = super().spec()
        for name in ("form", "patch_form"):
            del spec[name]
        return spec


def parse_inputs(**inputs: Any) -> TrainJobInputs:
    """Check the inputs of `train_job`, as KFP passes them."""
    given = parse_pod_inputs(TrainJobInputs, "train_job", inputs)
    check_processes(given)
    return replace(given, form=FORMS.get(given.patch_form, CURRENT))
