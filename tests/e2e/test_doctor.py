"""`kfp-pytorch doctor` on this machine's cluster: broken and mended by kubectl.

A mend is run as it is printed, where this cluster takes the command.
"""

import json
import os
import shutil
import subprocess

import pytest
from harness.command import COMMAND, invoke

pytestmark = [
    pytest.mark.local_cluster,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    root = tmp_path_factory.mktemp("doctor") / "root"
    invoke("local", "up", root=root)
    yield {**os.environ, "KUBECONFIG": str(root / "kubeconfig"), "HOME": str(root)}
    invoke("local", "down", root=root)


@pytest.fixture
def shell(cluster):
    def run(line):
        done = subprocess.run(
            ["sh", "-c", line], env=cluster, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def doctor(cluster):
    """What is not ok, by what it is about; the kinds that nothing acts on here are left out."""

    def found(*options):
        command = [*COMMAND, "doctor", "--launcher", "image", "--json", *options]
        done = subprocess.run(command, env=cluster, capture_output=True, text=True, check=False)
        findings = json.loads(done.stdout)["findings"]
        here = [f for f in findings if "no Deployment" not in f["what"] or f["level"] == "error"]
        return {each["about"]: each for each in here if each["level"] != "ok"}

    return found


def test_the_plain_cluster_lacks_nothing_that_a_run_needs(doctor):
    assert doctor() == {}


def test_an_operator_that_is_scaled_to_zero_is_named_until_it_is_back(shell, doctor):
    shell('kubectl patch deployment training-operator -n kubeflow -p \'{"spec":{"replicas":0}}\'')
    shell(
        "kubectl patch deployment training-operator -n kubeflow --subresource=status --type=merge "
        '-p \'{"status":{"readyReplicas":0}}\''
    )
    found = doctor()["Training Operator"]
    assert found["level"] == "error"
    assert found["mend"] == "kubectl scale deployment training-operator -n kubeflow --replicas=1"
    # This cluster has no subresource `scale`, and no pods of an operator.
    shell('kubectl patch deployment training-operator -n kubeflow -p \'{"spec":{"replicas":1}}\'')
    shell(
        "kubectl patch deployment training-operator -n kubeflow --subresource=status --type=merge "
        '-p \'{"status":{"readyReplicas":1}}\''
    )
    assert doctor() == {}


def test_the_permissions_come_back_with_the_manifest(shell, doctor):
    shell("kubectl delete clusterrolebinding local-accounts")
    found = doctor()["permissions"]
    apply, bind = found["mend"].split("`")[1::2]
    assert apply == "kubectl apply -n default -f manifests/rbac.yaml"
    shell(apply)
    # `create` with arguments is not for this API server: it gets the object that kubectl makes.
    shell(f"{bind} --dry-run=client -o yaml | kubectl apply --validate=false -f -")
    assert doctor() == {}


def test_a_quota_is_raised_by_the_command(shell, doctor):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "default"},
        "spec": {"hard": {"requests.cpu": "1", "limits.cpu": "1", "pods": "1"}},
    }
    shell(f"echo '{json.dumps(quota)}' | kubectl apply --validate=false -f -")
    found = doctor("--cpu", "1", "--num-nodes", "2")["quota"]
    assert "pods: the run asks for 2, 0 is used, the limit is 1" in found["what"]
    shell(found["mend"])
    assert "quota" not in doctor("--cpu", "1", "--num-nodes", "2")
    shell("kubectl delete resourcequota team")


def test_the_claim_is_made_by_the_manifest(shell, doctor):
    shell("kubectl delete pvc kfp-pytorch")
    found = doctor()
    shell(found["storage"]["mend"])
    shell("kubectl wait --for=jsonpath={.status.phase}=Bound pvc/kfp-pytorch --timeout=10s")
    assert doctor() == {}


def test_a_taint_is_tolerated_by_the_input(shell, doctor):
    taint = {"key": "team", "value": "other", "effect": "NoSchedule"}
    shell(f"kubectl patch node local -p '{json.dumps({'spec': {'taints': [taint]}})}'")
    found = doctor("--cpu", "100m")["nodes"]
    assert "local would, but for the taint team=other:NoSchedule" in found["what"]
    tolerations = found["mend"].removeprefix("Set tolerations=").removesuffix(".")
    assert doctor("--cpu", "100m", "--tolerations", tolerations) == {}
    shell('kubectl patch node local -p \'{"spec":{"taints":null}}\'')
