"""A cluster that is ready, and each thing of it broken in turn: named, mended, ready again."""

import pytest
from harness.api_server import start_in_thread
from harness.objects import ready

from kfp_pytorch.launcher.constants import (
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    NODE,
    PYTORCHJOB,
    RESOURCE_QUOTA,
    SERVICE_ACCOUNT,
    SERVING_RUNTIME,
    STORAGE_CLASS,
)
from kfp_pytorch.local.apiserver.registry import CLUSTER_ROLE, ROLE_BINDING, Registry
from kfp_pytorch.local.apiserver.store.api import Api

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def test_a_cluster_that_is_ready_is_green(look):
    found = look(num_nodes=2, gpus_per_node=4)
    assert {each.level for each in found} == {"ok"}
    told = {each.about: each.what for each in found}
    assert told["accelerators"] == (
        "1 node with NVIDIA-H100-80GB-HBM3: 8 of nvidia.com/gpu, 8 of them free."
    )
    assert told["nodes"] == "2 pods with 4 of nvidia.com/gpu fit now."
    assert told["not installed"] == "Nothing here needs Kueue."


def test_a_missing_kind_is_named_with_what_installs_it(tmp_path, look, bad, server):
    without = Registry()
    without.remove(PYTORCHJOB)
    (tmp_path / "other").mkdir()
    other = start_in_thread(tmp_path / "other", api=Api(without))
    ready.fill(other)
    try:
        [found] = bad(kubeconfig=other.kubeconfig)
    finally:
        other.stop()
    assert (found.level, found.about) == ("error", "Training Operator")
    assert "no pytorchjobs.kubeflow.org/v1: Training Operator is not installed" in found.what
    assert "training-operator.git/manifests/overlays/standalone?ref=v1.9.3" in found.mend
    # The other server has it.
    assert bad() == []


def test_an_operator_that_is_down_is_named(bad, server):
    ready.change(server, DEPLOYMENT, "training-operator", "kubeflow", status={"replicas": 1})
    [found] = bad()
    assert (found.level, found.about) == ("error", "Training Operator")
    assert "Deployment kubeflow/training-operator has no ready pod" in found.what
    assert found.mend.startswith("kubectl rollout restart deployment training-operator -n kubeflow")
    status = {"replicas": 1, "readyReplicas": 1}
    ready.change(server, DEPLOYMENT, "training-operator", "kubeflow", status=status)
    assert bad() == []


def test_an_operator_that_is_scaled_to_zero_is_named(bad, server):
    name, namespace = "kserve-controller-manager", "kserve"
    spec = server.call(server.api.get, DEPLOYMENT, namespace, name)["spec"]
    ready.change(server, DEPLOYMENT, name, namespace, spec={**spec, "replicas": 0})
    ready.change(server, DEPLOYMENT, name, namespace, status={})
    [found] = bad()
    assert "Deployment kserve/kserve-controller-manager is scaled to 0" in found.what
    assert found.mend == f"kubectl scale deployment {name} -n {namespace} --replicas=1"


def test_a_controller_that_is_not_needed_is_only_warned_of(bad, server):
    ready.drop(server, DEPLOYMENT, "katib-controller", "kubeflow")
    [found] = bad()
    assert (found.level, found.about) == ("warning", "Katib")
    assert "no Deployment katib-controller: nothing acts on them" in found.what


def test_the_launcher_that_is_not_there_is_named(bad, server):
    ready.drop(server, CONFIG_MAP, ready.LAUNCHER.name, "default")
    labels = {"app.kubernetes.io/name": "kfp-pytorch-launcher"}
    other = {"metadata": {**ready.named("kfp-pytorch-launcher-8-old"), "labels": labels}}
    ready.make(server, CONFIG_MAP, other)
    [found] = bad()
    assert found.what == (
        f"There is no ConfigMap default/{ready.LAUNCHER.name}. Other versions are there: "
        "kfp-pytorch-launcher-8-old."
    )
    assert found.mend == "kfp-pytorch launcher install -n default"
    ready.launcher(server)
    assert bad() == []


def test_a_launcher_of_other_content_is_named(bad, server):
    ready.drop(server, CONFIG_MAP, ready.LAUNCHER.name, "default")
    ready.launcher(server, b"other")
    [found] = bad()
    assert (found.level, "other content" in found.what) == ("error", True)
    assert found.mend == (
        f"kubectl delete configmap {ready.LAUNCHER.name} -n default && "
        "kfp-pytorch launcher install -n default"
    )


def test_verbs_that_are_missing_are_named_with_the_manifest_that_adds_them(bad, server):
    ready.drop(server, ROLE_BINDING, "kfp-pytorch-steps", "default")
    found, lesser = bad()
    assert (found.level, found.about) == ("error", "permissions")
    assert found.what.startswith("system:serviceaccount:default:pipeline-runner may not ")
    assert "get/watch/create/delete pytorchjobs.kubeflow.org" in found.what
    assert (lesser.level, "a failure's message says less" in lesser.what) == ("warning", True)
    assert found.mend == (
        "`kubectl apply -n default -f manifests/rbac.yaml` and `kubectl create rolebinding "
        "kfp-pytorch-steps-pipeline-runner -n default --clusterrole=kfp-pytorch-steps "
        "--serviceaccount=default:pipeline-runner`"
    )
    ready.bind(server, ROLE_BINDING, "kfp-pytorch-steps")
    assert bad() == []


def test_one_verb_that_is_missing_is_named_alone(bad, server):
    rules = server.call(server.api.get, CLUSTER_ROLE, "", "kfp-pytorch-steps")["rules"]
    without = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "delete"]} for rule in rules
    ]
    ready.change(server, CLUSTER_ROLE, "kfp-pytorch-steps", rules=without)
    found = next(each for each in bad() if each.level == "error")
    assert " may not delete pytorchjobs.kubeflow.org in default." in found.what


def test_a_service_account_that_is_not_there_is_named(bad, server):
    ready.drop(server, SERVICE_ACCOUNT, ready.ACCOUNT, "default")
    [found] = bad()
    assert "There is no ServiceAccount default/pipeline-runner" in found.what
    assert found.mend.startswith("kubectl create serviceaccount pipeline-runner -n default")


def test_a_secret_of_the_image_pull_that_is_not_there_is_named(bad, server):
    ready.change(
        server, SERVICE_ACCOUNT, "default", "default", imagePullSecrets=[{"name": "registry"}]
    )
    [found] = bad()
    assert "pulls images with the Secret registry, which is not there" in found.what
    assert "kubectl create secret docker-registry registry -n default" in found.mend


def test_a_taint_that_nothing_tolerates_is_named_and_the_toleration_mends_it(bad, server):
    ready.change(server, NODE, ready.GPU_NODE, spec={"taints": [TAINT]})
    [found] = bad(gpus_per_node=8)
    assert (found.level, found.about) == ("error", "nodes")
    assert "gpu-0 would, but for the taint nvidia.com/gpu=present:NoSchedule" in found.what
    toleration = '{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}'
    assert found.mend == f"Set tolerations=[{toleration}]."
    mended = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert bad(gpus_per_node=8, tolerations=[mended]) == []


def test_a_node_that_is_cordoned_is_named(bad, server):
    ready.change(server, NODE, ready.GPU_NODE, spec={"unschedulable": True})
    [found] = bad(gpus_per_node=8)
    assert "gpu-0 would, and takes no pods now" in found.what
    assert found.mend.startswith("kubectl uncordon gpu-0")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"gpus_per_node": 16}, "needs 1 pod with 16 of nvidia.com/gpu, and the nodes hold 0"),
        ({"gpus_per_node": 8, "num_nodes": 2}, "needs 2 pods with 8 of nvidia.com/gpu, and"),
        ({"memory": "65Gi"}, "needs 1 pod with 65Gi of memory, and the nodes hold 0"),
        ({"gpus_per_node": 1, "gpu_resource": "amd.com/gpu"}, "1 of amd.com/gpu"),
        ({"cpu": 1, "node_selector": {"zone": "b"}}, "gpu-0 would, but the node selector is not"),
    ],
)
def test_pods_that_fit_on_no_node_are_named(bad, inputs, words):
    [found] = bad(**inputs)
    assert (found.level, words in found.what) == ("error", True), found


def test_a_quota_that_the_run_exceeds_is_named_and_the_command_mends_it(bad, server):
    hard = {"requests.nvidia.com/gpu": "8", "pods": "10"}
    used = {"requests.nvidia.com/gpu": "4", "pods": "1"}
    quota = {"metadata": ready.named("team"), "spec": {"hard": hard}}
    ready.make(server, RESOURCE_QUOTA, quota, {"hard": hard, "used": used})
    [found] = bad(gpus_per_node=8)
    assert "ResourceQuota default/team would refuse pods of the run" in found.what
    assert "requests.nvidia.com/gpu: the run asks for 8, 4 is used, the limit is 8" in found.what
    assert found.mend.endswith(
        "kubectl patch resourcequota team -n default --type merge -p "
        '\'{"spec":{"hard":{"requests.nvidia.com/gpu":"12"}}}\''
    )
    ready.change(
        server, RESOURCE_QUOTA, "team", "default", spec={"hard": {"requests.nvidia.com/gpu": "12"}}
    )
    assert bad(gpus_per_node=8) == []


def test_a_quota_that_has_pods_state_what_they_need_is_named(bad, server):
    hard = {"requests.cpu": "8", "limits.memory": "8Gi"}
    ready.make(server, RESOURCE_QUOTA, {"metadata": ready.named("team"), "spec": {"hard": hard}})
    [found] = bad()
    assert "refuses pods that do not state cpu and memory" in found.what
    assert found.mend.startswith("Set cpu and memory;")
    assert bad(cpu="4", memory="8Gi") == []


def test_a_claim_that_is_not_there_is_named_with_the_manifest_that_makes_it(bad, server):
    ready.drop(server, CLAIM, "kfp-pytorch", "default")
    [found] = bad()
    assert "There is no claim default/kfp-pytorch" in found.what
    assert found.mend == "kubectl apply -n default -f manifests/pvc.yaml"
    ready.claim(server)
    assert bad() == []


def test_no_storage_class_for_several_nodes_is_named(bad, server):
    ready.drop(server, CLAIM, "kfp-pytorch", "default")
    ready.drop(server, STORAGE_CLASS, "shared")
    ready.storage_class(server, "standard", "rancher.io/local-path", default=True)
    _, found = bad()
    assert (found.level, found.about) == ("error", "storage class")
    assert "standard (rancher.io/local-path) has no ReadWriteMany" in found.what
    assert found.mend.startswith("Install a storage class for shared volumes, such as NFS")
    ready.storage_class(server, "files", "nfs.csi.k8s.io", default=False)
    _, found = bad()
    assert found.mend == "Give manifests/pvc.yaml the storageClassName files."


def test_a_claim_of_one_node_is_an_error_for_a_job_of_two(bad, server):
    ready.drop(server, CLAIM, "kfp-pytorch", "default")
    ready.claim(server, mode="ReadWriteOnce")
    [found] = bad(num_nodes=2)
    assert (found.level, "one node at a time (ReadWriteOnce)" in found.what) == ("error", True)
    assert bad()[0].level == "warning"


def test_a_serving_runtime_that_is_not_there_is_named(bad, server):
    ready.drop(server, SERVING_RUNTIME, "kfp-pytorch", "default")
    [found] = bad()
    assert found.what == "default has none for the format kfp-pytorch."
    assert found.mend == "kubectl apply -n default -f manifests/serving-runtime.yaml"
    assert bad(components=["pytorch_job"]) == []
    ready.runtime(server)
    assert bad() == []
    assert bad(runtime="other")[0].what == "default has none named other."


def test_a_server_that_does_not_answer_is_the_only_finding(bad, server, tmp_path):
    server.stop()
    [found] = bad()
    assert (found.level, found.about) == ("error", "API server")
    assert found.mend


def test_a_namespace_that_is_not_there_is_named_first(bad):
    found = bad(namespace="nowhere")[0]
    assert (found.level, found.what) == ("error", "There is no namespace nowhere.")
    assert found.mend.startswith("kubectl create namespace nowhere")
