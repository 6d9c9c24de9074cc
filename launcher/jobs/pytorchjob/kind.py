"""The PyTorchJob of the Training Operator v1 as a `JobKind`."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import INIT_CONTAINER, PYTORCH_CONTAINER, PYTORCHJOB
from kfp_pytorch.launcher.jobs.kind import InitContainer, JobKind
from kfp_pytorch.launcher.jobs.pytorchjob import state
from kfp_pytorch.launcher.jobs.pytorchjob.inputs import parse_inputs
from kfp_pytorch.launcher.jobs.pytorchjob.manifest import longest_suffix, manifest

PYTORCH_JOB = JobKind(
    resource=PYTORCHJOB,
    operator="Training Operator",
    install_advice="Install the Kubeflow Training Operator v1, which runs PyTorchJobs, and start "
    "the step again.",
    operator_pods="kubectl get pods -A -l app.kubernetes.io/name=training-operator",
    container=PYTORCH_CONTAINER,
    init_container=InitContainer(
        INIT_CONTAINER,
        image_advice="The operator adds this container to workers. Where its image cannot be "
        "pulled, an administrator gives another by the operator's flag "
        "--pytorch-init-container-image.",
        security_advice="The operator's own init container breaks it: an administrator gives that "
        "one a securityContext by the operator's flag --pytorch-init-container-template-file.",
    ),
    parse_inputs=parse_inputs,
    longest_suffix=longest_suffix,
    build=manifest,
    read_state=state.read_state,
    expected_pods=state.expected_pods,
    pod_selector=lambda job_name: f"{state.JOB_NAME_LABEL}={job_name}",
    pod_templates=state.pod_templates,
    first_pod=state.first_pod,
    replica=state.replica,
    node_of=state.node_of,
    node_name=state.node_name,
    num_nodes=state.num_nodes,
    processes_per_node=state.processes_per_node,
    recreates=state.recreates,
    restart_limit=state.restart_limit,
    is_final=state.is_final,
    restart_limit_input="backoff_limit",
    keep_pods_advice="To look at the pods yourself, start the step again with cleanup 'never' and "
    "clean_pod_policy 'Keep'.",
    unread_result_advice=state.unread_result_advice,
)
