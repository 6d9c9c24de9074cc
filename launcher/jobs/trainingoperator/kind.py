"""Makes the `JobKind` of a kind of the Training Operator v1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kfp_pytorch.launcher.constants import Kind
from kfp_pytorch.launcher.jobs.kind import JobInputs, JobKind
from kfp_pytorch.launcher.jobs.trainingoperator import labels, state
from kfp_pytorch.launcher.jobs.trainingoperator.roles import Roles
from kfp_pytorch.launcher.kubernetes.objects import Object


def operator_kind(
    resource: Kind,
    roles: Roles,
    container: str,
    *,
    parse_inputs: Callable[..., JobInputs],
    longest_suffix: Callable[[Any], str],
    build: Callable[..., Object],
    processes_per_node: Callable[[Object], int],
    **more: Any,
) -> JobKind:
    """Make a kind whose conditions, labels and run policy are the operator's.

    `more`: further fields of `JobKind`.
    """
    return JobKind(
        resource=resource,
        operator="Training Operator",
        install_advice=f"Install the Kubeflow Training Operator v1, which runs {resource.kind}s, "
        "and start the step again.",
        operator_pods="kubectl get pods -A -l app.kubernetes.io/name=training-operator",
        container=container,
        parse_inputs=parse_inputs,
        longest_suffix=longest_suffix,
        build=build,
        read_state=partial(state.read_state, roles),
        expected_pods=roles.expected_pods,
        pod_selector=labels.pod_selector,
        pod_templates=roles.pod_templates,
        first_pod=lambda job, _pods: roles.first_pod(job),
        replica=labels.replica,
        node_of=roles.node_of,
        node_name=roles.node_name,
        num_nodes=roles.num_nodes,
        processes_per_node=processes_per_node,
        recreates=partial(state.recreates, roles),
        restart_limit=partial(state.restart_limit, roles),
        is_final=partial(state.is_final, roles, container),
        restart_limit_input="backoff_limit",
        keep_pods_advice="To look at the pods yourself, start the step again with cleanup 'never' "
        "and clean_pod_policy 'Keep'.",
        unread_result_advice=state.unread_result_advice,
        **more,
    )
