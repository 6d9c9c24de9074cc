"""Which pods are refused, as on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kfp_pytorch.launcher.constants import DEPLOYMENT, POD, PYTORCHJOB
from kfp_pytorch.local.apiserver.registry import (
    PRIORITY_CLASS,
    RESOURCE_QUOTA,
    RUNTIME_CLASS,
    SERVICE_ACCOUNT,
)
from kfp_pytorch.local.apiserver.store.api import Api, ApiError
from kfp_pytorch.local.controllers.kubernetes import pod_admission
from kfp_pytorch.local.controllers.kubernetes.deployment import DeploymentController

Object = dict[str, Any]
Run = Callable[..., None]


def pod(name: str = "p", /, container: Object | None = None, **spec: Any) -> Object:
    main = {"name": "main", "image": "i", **(container or {})}
    meta = {"name": name, "namespace": "default"}
    return {"metadata": meta, "spec": {"containers": [main], **spec}}


def named(name: str, **fields: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, **fields}


@pytest.fixture
def api() -> Api:
    made = Api()
    pod_admission.install(made)
    return made


def refusal(api: Api, made: Object) -> str:
    with pytest.raises(ApiError) as raised:
        api.create(POD, made)
    assert api.list(POD) == []
    return raised.value.message


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def on_nodes(**expression: Any) -> Object:
    terms = [{"matchExpressions": [{"key": "zone", **expression}]}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


INVALID = [
    (on_nodes(operator="in", values=["a"]), 'operator: Invalid value: "in": not a valid selector'),
    (on_nodes(operator="In"), "must be specified when `operator` is 'In' or 'NotIn'"),
    (on_nodes(operator="Exists", values=["a"]), "may not be specified when `operator` is 'Exists'"),
    (on_nodes(operator="Gt", values=["1", "2"]), "must be specified single value when"),
    (on_nodes(operator="Exists", key="a b"), 'key: Invalid value: "a b"'),
    (
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
        "must have at least one node selector term",
    ),
    (
        {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 101, "preference": {}}]}}},
        "weight: Invalid value: 101: must be in the range 1-100",
    ),
    (
        {"affinity": {"podAntiAffinity": {REQUIRED: [{"labelSelector": {}, "topologyKey": ""}]}}},
        "topologyKey: Required value: can not be empty",
    ),
    (
        {"container": {"resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "2"}}}},
        'resources.requests: Invalid value: "4": must be less than or equal to cpu limit of 2',
    ),
    (
        {"container": {"resources": {"limits": {"nvidia.com/gpu": "1500m"}}}},
        'resources.limits[nvidia.com/gpu]: Invalid value: "1500m": must be an integer',
    ),
    (
        {"container": {"resources": {"requests": {"nvidia.com/gpu": "1"}}}},
        "Limit must be set for non overcommitable resources",
    ),
    (
        {"container": {"resources": {"limits": {"memory": "4GB"}}}},
        "quantities must match the regular expression",
    ),
    ({"nodeSelector": {"zone": "a b"}}, 'spec.nodeSelector: Invalid value: "a b"'),
    ({"tolerations": [{"operator": "Equal"}]}, "operator must be Exists when `key` is empty"),
    ({"tolerations": [{"key": "a b"}]}, "spec.tolerations[0].key: Invalid value"),
    (
        {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}]},
        "effect must be 'NoExecute' when `tolerationSeconds` is set",
    ),
    ({"securityContext": {"runAsUser": -1}}, "must be between 0 and 2147483647, inclusive"),
    (
        {"container": {"securityContext": {"seccompProfile": {"type": "Any"}}}},
        "spec.containers[0].securityContext.seccompProfile.type: Unsupported value",
    ),
    (
        {"container": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}},
        "error converting fieldPath: field label not supported: x",
    ),
    (
        {"container": {"env": [{"name": "A", "valueFrom": {}}]}},
        "must specify one of: `fieldRef`",
    ),
    (
        {
            "container": {
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a/b"}}}]
            }
        },
        "a valid config key must consist of alphanumeric characters",
    ),
    (
        {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}}]},
        "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
    ),
    (
        {"initContainers": [{"name": "main", "image": "i"}]},
        'spec.containers[0].name: Duplicate value: "main"',
    ),
]


@pytest.mark.parametrize(("given", "message"), INVALID)
def test_a_pod_that_is_not_valid_is_refused_with_the_field(
    api: Api, given: Object, message: str
) -> None:
    assert message in refusal(api, pod(**given))


def test_two_variables_of_one_name_are_taken_for_the_last_counts(api: Api) -> None:
    twice = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    assert api.create(POD, pod(container={"env": twice}))


def test_a_pod_with_a_missing_service_account_is_refused(api: Api) -> None:
    assert refusal(api, pod(serviceAccountName="me")) == (
        'pods "p" is forbidden: error looking up service account default/me: serviceaccount "me" '
        "not found"
    )
    api.create(SERVICE_ACCOUNT, named("me"))
    api.create(POD, pod(serviceAccountName="me"))
    # An existing pod stays when its account is deleted.
    api.delete(SERVICE_ACCOUNT, "default", "me")
    api.mutate(POD, "default", "p", lambda made: made["metadata"].update(labels={"a": "b"}))


def test_a_priority_class_must_exist_or_be_a_systems_own(api: Api) -> None:
    message = refusal(api, pod(priorityClassName="high"))
    assert message == 'pods "p" is forbidden: no PriorityClass with name high was found'
    api.create(PRIORITY_CLASS, {"metadata": {"name": "high"}, "value": 5})
    api.create(POD, pod(priorityClassName="high"))
    api.create(POD, pod("q", priorityClassName="system-node-critical"))


def test_a_runtime_class_must_exist(api: Api) -> None:
    message = refusal(api, pod(runtimeClassName="nvidia"))
    assert message == 'pods "p" is forbidden: pod rejected: RuntimeClass "nvidia" not found'
    api.create(RUNTIME_CLASS, {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    api.create(POD, pod(runtimeClassName="nvidia"))


def quota(**hard: str) -> Object:
    return named("team", spec={"hard": {k.replace("_", "."): v for k, v in hard.items()}})


def test_a_quota_counts_what_has_not_ended(api: Api) -> None:
    api.create(RESOURCE_QUOTA, quota(requests_memory="3Gi", pods="5"))
    wanted = {"resources": {"limits": {"memory": "2Gi"}}}
    api.create(POD, pod("a", container=wanted))
    with pytest.raises(ApiError) as raised:
        api.create(POD, pod("b", container=wanted))
    assert raised.value.message == (
        'pods "b" is forbidden: exceeded quota: team, requested: requests.memory=2Gi, used: '
        "requests.memory=2Gi, limited: requests.memory=3Gi"
    )
    api.mutate(POD, "default", "a", lambda made: made["status"].update(phase="Failed"), "status")
    api.create(POD, pod("b", container=wanted))


def test_a_quota_requires_the_amounts_that_it_counts(api: Api) -> None:
    api.create(RESOURCE_QUOTA, quota(limits_cpu="8"))
    message = refusal(api, pod())
    assert message.endswith("failed quota: team: must specify limits.cpu for: main")


def test_a_jobs_pods_are_created_as_soon_as_they_are_admitted(on_controllers: Run) -> None:
    container = {"name": "pytorch", "image": "i", "command": ["python", "-I", "-S", "-c", "pass"]}
    spec = {"containers": [container], "serviceAccountName": "me"}
    master = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": spec}}

    async def story(local: Any) -> None:
        local.create_job("j", {"Master": master})
        event = await local.event("j", "FailedCreatePod")
        assert "error looking up service account default/me" in event["message"]
        assert "status" not in local.api.get(PYTORCHJOB, "default", "j")
        local.api.create(SERVICE_ACCOUNT, named("me"))
        await local.condition("j", "Succeeded")

    on_controllers(story)


def test_a_deployment_reports_refused_pods_until_they_are_created() -> None:
    api = Api()
    pod_admission.install(api)
    spec = {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "me"}
    template = {"metadata": {"labels": {"app": "d"}}, "spec": spec}
    body = {"template": template, "selector": {"matchLabels": {"app": "d"}}}
    api.create(DEPLOYMENT, named("d", spec=body))
    controller = DeploymentController(api)

    def conditions() -> dict[str, Object]:
        found = api.get(DEPLOYMENT, "default", "d")["status"]["conditions"]
        return {each["type"]: each for each in found}

    async def story() -> None:
        controller.reconcile(("default", "d"))  # records the ReplicaSet
        versions = []
        for _ in range(2):
            with pytest.raises(ApiError):
                controller.reconcile(("default", "d"))
            versions.append(api.get(DEPLOYMENT, "default", "d")["metadata"]["resourceVersion"])
        assert versions[0] == versions[1]  # what is known already is not written again
        refused = conditions()["ReplicaFailure"]
        assert (refused["status"], refused["reason"]) == ("True", "FailedCreate")
        assert "error looking up service account default/me" in refused["message"]
        api.create(SERVICE_ACCOUNT, named("me"))
        controller.reconcile(("default", "d"))
        controller.reconcile(("default", "d"))
        assert "ReplicaFailure" not in conditions()

    asyncio.run(story())


def test_a_pod_with_a_missing_pull_secret_runs_with_a_warning(on_controllers: Run) -> None:
    async def story(local: Any) -> None:
        local.create_pod("p", local.python("pass"), ImagePullSecrets=[{"name": "registry"}])
        await local.phase("p", "Succeeded")
        event = await local.event("p", "FailedToRetrieveImagePullSecret")
        assert "image pull secrets (registry)" in event["message"]

    on_controllers(story)
