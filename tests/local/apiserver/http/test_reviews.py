"""Reviews of access, as a real API server's RBAC decides them."""

import base64
import json

import pytest
import urllib3
from harness.api_server import start_in_thread
from harness.objects import ready

from kfp_pytorch.local.apiserver.registry import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
)

USER = "system:serviceaccount:default:pipeline-runner"
GROUPS = ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]


@pytest.fixture
def server(tmp_path):
    started = start_in_thread(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def review(server):
    def asked(kind, spec, token=""):
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        url = f"{server.url}/apis/authorization.k8s.io/v1/{kind.lower()}s"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = urllib3.request("POST", url, json=body, headers=headers)
        return answer.status, answer.json()

    return asked


@pytest.fixture
def allowed(review):
    def asked(verb, resource, group="", namespace="default", **more):
        plural, _, part = resource.partition("/")
        wanted = {"verb": verb, "resource": plural, "group": group, "namespace": namespace, **more}
        wanted |= {"subresource": part} if part else {}
        spec = {"user": USER, "groups": GROUPS, "resourceAttributes": wanted}
        code, answer = review("SubjectAccessReview", spec)
        assert code == 201
        return answer["status"]

    return asked


def role(server, kind, name, *rules, **more):
    namespace = "default" if kind == ROLE else ""
    ready.make(server, kind, {"metadata": ready.named(name, namespace), "rules": rules, **more})


def bind(server, kind, name, reference, subject, namespace="default"):
    reference = {"apiGroup": "rbac.authorization.k8s.io", **reference}
    metadata = ready.named(name, "" if kind == CLUSTER_ROLE_BINDING else namespace)
    ready.make(server, kind, {"metadata": metadata, "roleRef": reference, "subjects": [subject]})


ACCOUNT = {"kind": "ServiceAccount", "name": "pipeline-runner", "namespace": "default"}
PODS = {"apiGroups": [""], "resources": ["pods", "*/log"], "verbs": ["get", "list"]}


def test_a_role_binding_allows_in_its_namespace_alone(server, allowed):
    role(server, ROLE, "reader", PODS)
    bind(server, ROLE_BINDING, "readers", {"kind": "Role", "name": "reader"}, ACCOUNT)
    assert allowed("get", "pods") == {
        "allowed": True,
        "reason": 'RBAC: allowed by RoleBinding "readers/default" of Role "reader" to '
        'ServiceAccount "pipeline-runner/default"',
    }
    assert allowed("get", "pods/log")["allowed"]
    for denied in (
        allowed("delete", "pods"),
        allowed("get", "pods/exec"),
        allowed("get", "pods", group="apps"),
        allowed("get", "pods", namespace="kube-system"),
        allowed("get", "pods", namespace=""),
    ):
        assert denied == {"allowed": False}


def test_a_cluster_role_binding_of_a_group_allows_everywhere(server, allowed):
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    role(server, CLUSTER_ROLE, "all", everything)
    group = {"kind": "Group", "name": "system:serviceaccounts"}
    bind(server, CLUSTER_ROLE_BINDING, "everybody", {"kind": "ClusterRole", "name": "all"}, group)
    assert allowed("delete", "nodes", namespace="") == {
        "allowed": True,
        "reason": 'RBAC: allowed by ClusterRoleBinding "everybody" of ClusterRole "all" to Group '
        '"system:serviceaccounts"',
    }


def test_a_rule_for_named_objects_allows_these_alone(server, allowed):
    named = {**PODS, "resourceNames": ["a"]}
    role(server, ROLE, "one", named)
    bind(server, ROLE_BINDING, "one", {"kind": "Role", "name": "one"}, ACCOUNT)
    assert allowed("get", "pods", name="a")["allowed"]
    assert not allowed("get", "pods", name="b")["allowed"]
    assert not allowed("list", "pods")["allowed"]


def test_a_binding_of_a_role_that_is_not_there_is_told(server, allowed):
    bind(server, ROLE_BINDING, "lost", {"kind": "ClusterRole", "name": "gone"}, ACCOUNT)
    assert allowed("get", "pods") == {
        "allowed": False,
        "reason": 'RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found',
    }


def test_an_aggregated_role_has_the_rules_of_the_others(server, allowed):
    labels = {"rbac.authorization.kubeflow.org/aggregate-to-kubeflow-edit": "true"}
    metadata = {"name": "part", "labels": labels}
    ready.make(server, CLUSTER_ROLE, {"metadata": metadata, "rules": [PODS]})
    selectors = {"clusterRoleSelectors": [{"matchLabels": labels}]}
    role(server, CLUSTER_ROLE, "kubeflow-edit", aggregationRule=selectors)
    bind(server, ROLE_BINDING, "edit", {"kind": "ClusterRole", "name": "kubeflow-edit"}, ACCOUNT)
    assert allowed("list", "pods")["allowed"]


def test_who_asks_for_itself_is_the_account_of_its_token_or_the_administrator(server, review):
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    _, answer = review("SelfSubjectAccessReview", spec)
    assert answer["status"]["allowed"] is True
    payload = base64.urlsafe_b64encode(json.dumps({"sub": USER}).encode()).decode().rstrip("=")
    _, answer = review("SelfSubjectAccessReview", spec, f"e30.{payload}.e30")
    assert answer["status"] == {"allowed": False}
    asking = {"verb": "create", "group": "authorization.k8s.io"}
    asking["resource"] = "selfsubjectaccessreviews"
    spec = {"resourceAttributes": asking}
    _, answer = review("SelfSubjectAccessReview", spec, f"e30.{payload}.e30")
    assert answer["status"]["allowed"] is True


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"user": "a"}, "exactly one of nonResourceAttributes or resourceAttributes must be"),
        ({"resourceAttributes": {}}, "at least one of user or group must be specified"),
        (
            {"user": "a", "resourceAttributes": {}, "nonResourceAttributes": {}},
            "cannot be specified in combination with resourceAttributes",
        ),
    ],
)
def test_a_review_of_nothing_or_of_nobody_is_refused(review, spec, words):
    code, answer = review("SubjectAccessReview", spec)
    assert (code, answer["reason"]) == (422, "Invalid")
    assert words in answer["message"]
