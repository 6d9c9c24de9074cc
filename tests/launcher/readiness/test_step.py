"""What a step sees of a cluster, whose account may read little."""

import pytest
from harness.objects import ready

from kfp_pytorch.components import interfaces
from kfp_pytorch.launcher.constants import CONFIG_MAP, KNATIVE_REVISION
from kfp_pytorch.launcher.readiness.uses import LAUNCHER_RULE, USES
from kfp_pytorch.local.apiserver.registry import CLUSTER_ROLE_BINDING, ROLE_BINDING


@pytest.fixture
def in_step(look, server, tmp_path):
    def found(**inputs):
        path = ready.step_kubeconfig(server, tmp_path)
        return look(kubeconfig=path, account="", launcher=None, **inputs)

    return found


def test_the_rules_of_the_components_are_those_of_the_manifest():
    roles = [*ready.documents("rbac.yaml"), *ready.documents("source/role.yaml")]
    granted = {
        (role["metadata"]["name"], group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    rules = [LAUNCHER_RULE, *(rule for use in USES.values() for rule in use.rules)]
    used = {
        (rule.role.name, rule.group, rule.resource, verb)
        for rule in rules
        for verb in rule.verbs.split()
    }
    assert used == granted, "Change launcher/readiness/uses.py with the roles of the manifests."


def test_a_step_that_may_take_no_code_along_is_ready_and_told_how(in_step, server):
    told = {each.about: each for each in in_step()}["permissions"]
    assert told.level == "ok"
    assert (
        "where a pipeline has `source`: `kubectl apply -n default -k manifests/source`" in told.what
    )
    for part in ready.documents("source/role.yaml"):
        ready.make(server, ready.CLUSTER_ROLE, part)
    ready.bind(server, ROLE_BINDING, "kfp-pytorch-source")
    told = {each.about: each for each in in_step()}["permissions"]
    assert told.what.endswith("may do all that the steps do.")


def test_every_component_says_what_it_uses():
    assert set(USES) == {each.name for each in interfaces.INTERFACES}


def test_a_step_asks_for_itself_and_says_once_what_it_could_not_see(in_step):
    found = in_step(gpus_per_node=8)
    told = {each.about: each for each in found}
    assert told["permissions"].level == "ok"
    assert told["permissions"].what.startswith("system:serviceaccount:default:pipeline-runner may")
    assert told["storage"].level == "ok"
    missing = told["not checked"]
    assert missing.level == "warning"
    for words in ("list nodes", "list resourcequotas in default", "get serviceaccounts in default"):
        assert words in missing.what
    assert "kubectl apply -n default -k manifests/preflight" in missing.mend
    assert "controllers" in told
    assert "error" not in {each.level for each in found}


def test_the_manifest_for_reading_lets_a_step_see_everything(in_step, server):
    for part in ready.documents("preflight/role.yaml"):
        ready.make(server, ready.CLUSTER_ROLE, part)
    ready.bind(server, CLUSTER_ROLE_BINDING, "kfp-pytorch-preflight")
    assert [each for each in in_step(gpus_per_node=8) if each.level != "ok"] == []


def test_a_verb_that_the_step_lacks_is_an_error(in_step, server):
    ready.drop(server, ROLE_BINDING, "kfp-pytorch-steps", "default")
    told = {each.about: each for each in in_step() if each.level == "error"}
    assert "may not get configmaps" in told["permissions"].what
    assert "--serviceaccount=default:pipeline-runner" in told["permissions"].mend


def test_whoever_may_not_ask_for_others_is_told_so(look, server, tmp_path):
    path = ready.step_kubeconfig(server, tmp_path)
    [found] = [each for each in look(kubeconfig=path) if each.about == "not checked"]
    assert "create subjectaccessreviews" in found.what
    assert found.mend == "Run this as an administrator of the cluster."


def test_knative_is_asked_for_only_where_it_is(look, server):
    rule = next(rule for rule in USES["kserve_deploy"].rules if rule.resource == "revisions")
    assert rule.kind == KNATIVE_REVISION
    look()
    asked = [request for request in server.requests if "knative" in request.path]
    assert {request.path for request in asked} == {"/apis/serving.knative.dev/v1"}


def test_nothing_is_written(look, server):
    look(gpus_per_node=8)
    written = {request.path for request in server.requests if request.verb not in ("get", "list")}
    assert written == {
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    }


def test_the_configmap_of_the_launcher_is_read_from_the_namespace_of_the_run(look, server):
    ready.make(server, CONFIG_MAP, {"metadata": ready.named("any", "team")})
    found = look(namespace="team")
    assert "There is no ConfigMap team/" in next(f.what for f in found if f.about == "launcher")
