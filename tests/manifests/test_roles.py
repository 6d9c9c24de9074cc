"""Who may do what: the least that the steps need, in both profiles of Kubeflow."""

from __future__ import annotations

from pathlib import Path

import yaml
from harness.kustomize import build

from kfp_pytorch.launcher.kubernetes.api_errors import RBAC_MANIFEST, SOURCE_ROLE

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"


def test_the_role_has_no_secrets_no_wildcards_and_no_rights_over_rights() -> None:
    (role,) = (each for each in build(MANIFESTS) if each["kind"] == "ClusterRole")
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    groups = {group for rule in role["rules"] for group in rule["apiGroups"]}
    assert verbs <= {"get", "list", "watch", "create", "update", "delete"}
    assert not resources & {"secrets", "serviceaccounts", "pods/exec", "*"}
    assert not groups & {"rbac.authorization.k8s.io", "*"}
    assert not any("nonResourceURLs" in rule for rule in role["rules"])
    # Of the core it writes nothing.
    for rule in role["rules"]:
        assert "" not in rule["apiGroups"] or set(rule["verbs"]) <= {"get", "list", "watch"}


def test_writing_configmaps_is_a_role_of_its_own_that_nobody_has_by_default() -> None:
    (role,) = build(MANIFESTS / "source")
    assert "labels" not in role["metadata"]
    assert role["metadata"]["name"] == SOURCE_ROLE.name
    assert SOURCE_ROLE.applied == "-k manifests/source"
    (rule,) = role["rules"]
    assert rule["resources"] == ["configmaps"]
    assert set(rule["verbs"]) == {"create", "update", "delete"}


def test_in_a_profile_the_role_goes_into_kubeflows_own_and_binds_nobody() -> None:
    made = build(MANIFESTS)
    (role,) = (each for each in made if each["kind"] == "ClusterRole")
    label = "rbac.authorization.kubeflow.org/aggregate-to-kubeflow-edit"
    assert role["metadata"]["labels"] == {label: "true"}
    assert not [each for each in made if each["kind"].endswith("Binding")]


def test_standalone_the_account_of_the_steps_is_bound_to_it_in_its_namespace() -> None:
    (role,) = yaml.safe_load_all((ROOT / RBAC_MANIFEST).read_text())
    (binding,) = build(MANIFESTS / "standalone")
    assert binding["kind"] == "RoleBinding"
    assert binding["roleRef"]["kind"] == role["kind"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "pipeline-runner", "namespace": "kubeflow"}
