"""The shipped role covers every verb that the steps use."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.constants import WORKFLOW, Kind
from kfp_pytorch.launcher.errors import JobFailed
from kfp_pytorch.launcher.jobs.registry import EVERY_KIND
from kfp_pytorch.launcher.kubernetes.api_errors import Call, Forbidden

ROOT = Path(__file__).resolve().parents[3]
VERBS = {
    "get": "get", "create": "create", "replace": "update", "delete": "delete",
    "list": "list", "list_at": "list", "watch": "watch",
}  # fmt: skip


def granted() -> set[tuple[str, str, str]]:
    files = [ROOT / "manifests" / "rbac.yaml", ROOT / "manifests" / "source" / "role.yaml"]
    roles = [role for path in files for role in yaml.safe_load_all(path.read_text())]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_what_a_step_asks_in_a_run_with_everything_in_it_is_granted(step: Any, hands: Any) -> None:
    for ending in ("Failed", "Succeeded"):
        run = step(cleanup="never" if ending == "Failed" else "always")
        hands.until(lambda: [j for j in hands.jobs() if not (j.get("status") or {})])
        pod = hands.running(run.job)
        hands.log(pod, ["2025-11-27T12:00:00Z a line"])
        hands.set_conditions(run.job, "Created", "Running")
        hands.until(lambda: hands.count("get", "/log"))
        hands.ended(run.job, 1 if ending == "Failed" else 0)
        hands.set_conditions(run.job, ending)
        run.wait()
        assert (ending == "Failed") == isinstance(run.error, JobFailed)
    asked = {_permission(request) for request in hands.server.requests}
    assert asked - granted() == set()


def _permission(request: Any) -> tuple[str, str, str]:
    parts = request.path.strip("/").split("/")
    group, rest = ("", parts[4:]) if parts[0] == "api" else (parts[1], parts[5:])
    resource = f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]
    return group, resource, request.verb


def test_every_call_in_the_launchers_source_is_granted() -> None:
    kinds = {name: [kind] for name, kind in vars(constants).items() if isinstance(kind, Kind)}
    # How the launcher names the resource of a kind of job.
    kinds |= {name: [k.resource for k in EVERY_KIND] for name in ("resource", "_kind")}
    kinds["group"] = [constants.VOLCANO_POD_GROUP, constants.COSCHEDULING_POD_GROUP]
    found = set()
    for path in (ROOT / "launcher").rglob("*.py"):
        if path.parent.name == "readiness":
            continue  # It asks for each permission before it reads, and does without.
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            verb = VERBS.get(node.func.attr)
            if verb and node.args:
                named = kinds.get(_name(node.args[0]), [])
                found |= {(kind.group, kind.plural, verb) for kind in named}
    assert ("kubeflow.org", "pytorchjobs", "create") in found
    assert ("scheduling.volcano.sh", "podgroups", "create") in found
    assert found - granted() == set()
    assert WORKFLOW.plural not in {resource for _, resource, _ in granted()}


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@pytest.mark.parametrize(
    ("account", "grant"),
    [
        ("system:serviceaccount:team:default-editor", "--serviceaccount=team:default-editor"),
        ("a-person", "--user=a-person"),
    ],
)
def test_a_missing_permission_comes_with_the_commands_that_grant_it(
    account: str, grant: str
) -> None:
    call = Call("create", "pytorchjobs", "kubeflow.org", "team")
    words = f'User "{account}" cannot create resource "pytorchjobs"'
    message = Forbidden(call, 403, "Forbidden", words).message
    assert "kubectl apply -n team -f manifests/rbac.yaml" in message
    assert grant in message
    assert "--clusterrole=kfp-pytorch-steps" in message
    # With the name of the binding in the manifest, the second command would be refused.
    name = grant.rpartition("=")[2].rpartition(":")[2]
    assert f"create rolebinding kfp-pytorch-steps-{name} " in message


def test_a_missing_permission_to_take_code_along_names_the_role_that_has_it() -> None:
    account = "system:serviceaccount:team:pipeline-runner"
    writes, reads = (
        Forbidden(Call(verb, "configmaps", "", "team", account=account), 403, "", "").message
        for verb in ("create", "get")
    )
    assert "`kubectl apply -n team -k manifests/source`" in writes
    assert "--clusterrole=kfp-pytorch-source --serviceaccount=team:pipeline-runner" in writes
    assert "manifests/rbac.yaml" in reads
