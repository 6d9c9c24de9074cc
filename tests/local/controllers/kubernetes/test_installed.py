"""What a cluster begins with besides its node."""

from __future__ import annotations

import asyncio

from kfp_pytorch.launcher.constants import DEPLOYMENT, POD
from kfp_pytorch.local.apiserver.http import reviews
from kfp_pytorch.local.apiserver.registry import NAMESPACE, SERVICE_ACCOUNT
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes import installed
from kfp_pytorch.local.controllers.kubernetes.deployment import DeploymentController


def test_the_deployments_of_this_process_are_ready_and_make_no_pods() -> None:
    api = Api()
    installed.fill(api)
    found = api.list(DEPLOYMENT)
    assert {each["metadata"]["name"] for each in found} == {
        "training-operator",
        "kubeflow-trainer-controller-manager",
        "jobset-controller-manager",
        "kserve-controller-manager",
    }
    for each in found:
        metadata = each["metadata"]
        DeploymentController(api).reconcile((metadata["namespace"], metadata["name"]))
        assert api.get(DEPLOYMENT, metadata["namespace"], metadata["name"]) == each
        assert each["status"]["readyReplicas"] == 1
    assert api.list(POD) == []


def test_every_account_may_do_everything() -> None:
    api = Api()
    installed.fill(api)
    wanted = {"verb": "delete", "group": "kubeflow.org", "resource": "pytorchjobs"}
    spec = {"user": "any", "groups": ["system:serviceaccounts"], "resourceAttributes": wanted}
    answer = reviews.access(api, {"spec": spec}, reviews.User("local"))
    assert answer["status"]["allowed"] is True


def test_each_namespace_gets_its_account() -> None:
    async def scenario() -> list[str]:
        api = Api()
        task = asyncio.create_task(installed.give_accounts(api))
        await asyncio.sleep(0.01)
        api.create(NAMESPACE, {"metadata": {"name": "team"}})
        await asyncio.sleep(0.01)
        task.cancel()
        accounts = api.list(SERVICE_ACCOUNT)
        return sorted(each["metadata"]["namespace"] for each in accounts)

    assert asyncio.run(scenario()) == ["default", "kube-public", "kube-system", "team"]
