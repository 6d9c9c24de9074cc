"""The TrainJob of Kubeflow Trainer v2 as a `JobKind`."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import NODE_CONTAINER, TRAINJOB
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.jobs.trainjob import state
from kfp_pytorch.launcher.jobs.trainjob.forms import FORMS
from kfp_pytorch.launcher.jobs.trainjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.trainjob.manifest import longest_suffix, manifest, pod_templates

_OTHER_FORM = (
    f"Each version of the Trainer has another: give patch_form that of this cluster's, "
    f"{', '.join(FORMS)} (kubectl explain trainjob.spec), or leave it out."
)
TRAIN_JOB = JobKind(
    resource=TRAINJOB,
    operator="Trainer",
    install_advice="Install Kubeflow Trainer v2, which runs TrainJobs, and start the step again; "
    "PyTorchJobs of the Training Operator v1 are the step pytorch_job's.",
    operator_pods="kubectl get pods -A -l app.kubernetes.io/name=trainer",
    container=NODE_CONTAINER,
    parse_inputs=parse_inputs,
    longest_suffix=longest_suffix,
    build=manifest,
    read_state=state.read_state,
    expected_pods=state.expected_pods,
    pod_selector=state.pod_selector,
    pod_templates=pod_templates,
    first_pod=state.first_pod,
    replica=state.replica,
    node_of=state.node_of,
    node_name=state.node_name,
    name_end="-?????",
    num_nodes=state.num_nodes,
    processes_per_node=state.processes_per_node,
    # The kubelet, the Job or the JobSet starts pods again, as the runtime says.
    recreates=lambda _job, _code: False,
    restart_limit=lambda _job: 0,
    owns_pod=state.owns_pod,
    # In the foreground the Trainer makes the JobSet again while its pods go.
    propagation="Background",
    makers=state.makers,
    refusal_reasons=("FailedCreate", "TrainJobResourcesCreationFailed", "JobCreationFailed"),
    newer_fields={f"spec.{name}": _OTHER_FORM for name in FORMS},
    is_harmless=state.is_harmless,
)
