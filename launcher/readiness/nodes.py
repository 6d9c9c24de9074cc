"""Checks of the nodes: which accelerators there are, and whether the job's pods fit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher.constants import CONFIG_MAP, NODE, POD
from kfp_pytorch.launcher.inputs import k8s
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.client import EVERYWHERE
from kfp_pytorch.launcher.kubernetes.objects import Object, dig, each
from kfp_pytorch.launcher.readiness.findings import Finding, error, ok, warning
from kfp_pytorch.launcher.readiness.needs import Needs
from kfp_pytorch.launcher.readiness.survey import Survey, Unreadable
from kfp_pytorch.launcher.text import counted, some

_ACCELERATOR = re.compile(r".+/(.*gpu.*|mig-.+|tpu|neuron.*|.*gaudi|.*npu.*|Ascend.+)", re.ASCII)
_PRODUCTS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "node.kubernetes.io/instance-type",
)
# Taints of a node that is not ready, or that somebody has drained: it says so itself.
_OF_STATE = "node.kubernetes.io/"
# This provider's API server adds the toleration of an accelerator's taint to pods that ask for it.
_GKE = "cloud.google.com/gke-nodepool"
_ABOUT = "nodes"


@dataclass(frozen=True)
class Node:
    """What the checks need of a node.

    Attributes:
        product: The product of its accelerators, or an empty string.
        total: What pods may request of it, by resource.
        free: What of that no pod has requested; None where pods may not be listed.
        taints: The taints that no toleration of the run covers.
        selected: Whether the run's node selector matches.
        ready: Whether it takes pods at all.
    """

    name: str
    product: str
    total: Mapping[str, float]
    free: Mapping[str, float] | None
    taints: tuple[Object, ...]
    selected: bool
    ready: bool

    def holds(self, amounts: Mapping[str, float], *, of: Mapping[str, float]) -> int:
        """How many pods that ask for these amounts it holds, `of` the total or what is free."""
        counts = [int((of.get(name, 0.0) + 1e-9) // each) for name, each in amounts.items() if each]
        return max(0, min(counts, default=int(of.get("pods", 0.0))))


def nodes(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """The accelerators that there are, and whether the job's pods fit at all, and now."""
    items = survey.list(NODE)
    used, unread = None, ""
    try:
        used = _requested(survey.list(POD, EVERYWHERE))
    except Unreadable as reason:
        unread = str(reason)
    found = [_read(item, used, needs) for item in items]
    yield from _accelerators(found, needs)
    if needs.trains and needs.amounts:
        yield from _fits(survey, found, needs)
    if unread and needs.amounts:
        words = f"What is free is not known: this account may not {unread}."
        yield warning(_ABOUT, words, "kubectl describe nodes has it.")


def _read(item: Object, used: Mapping[str, Mapping[str, float]] | None, needs: Needs) -> Node:
    labels = dig(item, "metadata", "labels") or {}
    total = _quantities(dig(item, "status", "allocatable") or {})
    name = objects.name(item)
    free = None
    if used is not None:
        taken = used.get(name, {})
        free = {key: amount - taken.get(key, 0.0) for key, amount in total.items()}
    ready = objects.condition(item, "Ready").get("status") == "True"
    taints = [
        taint for taint in each(item, "spec", "taints") if not _tolerated(taint, needs, labels)
    ]
    return Node(
        name=name,
        product=next((str(labels[key]) for key in _PRODUCTS if labels.get(key)), ""),
        total=total,
        free=free,
        taints=tuple(taints),
        selected=needs.node_selector.items() <= labels.items(),
        ready=ready and not dig(item, "spec", "unschedulable"),
    )


def _tolerated(taint: Object, needs: Needs, labels: Mapping[str, Any]) -> bool:
    """Whether a taint keeps none of the run's pods off."""
    key, effect = str(taint.get("key")), taint.get("effect")
    if effect == "PreferNoSchedule" or key.startswith(_OF_STATE):
        return True
    if _GKE in labels and key == needs.gpu_resource and needs.gpus_per_node:
        return True
    return any(_covers(toleration, taint) for toleration in needs.tolerations)


def _covers(toleration: Mapping[str, Any], taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key", "") in ("", taint.get("key"))
    same_value = toleration.get("value", "") == (taint.get("value") or "")
    return toleration.get("key") == taint.get("key") and same_value


def _requested(pods: Iterable[Object]) -> dict[str, dict[str, float]]:
    """What the pods of each node that have not ended request."""
    used: dict[str, dict[str, float]] = {}
    for pod in pods:
        node = dig(pod, "spec", "nodeName")
        if not node or dig(pod, "status", "phase") in ("Succeeded", "Failed"):
            continue
        of_node = used.setdefault(str(node), {})
        of_node["pods"] = of_node.get("pods", 0.0) + 1.0
        for container in each(pod, "spec", "containers"):
            limits = dig(container, "resources", "limits") or {}
            asked = {**limits, **(dig(container, "resources", "requests") or {})}
            for name, amount in _quantities(asked).items():
                of_node[name] = of_node.get(name, 0.0) + amount
    return used


def _quantities(written: Mapping[str, Any]) -> dict[str, float]:
    return {name: k8s.quantity_value(str(each)) or 0.0 for name, each in written.items()}


def _accelerators(found: list[Node], needs: Needs) -> Iterator[Finding]:
    """One line for each product and resource."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in found:
        for resource, amount in node.total.items():
            wanted = resource == needs.gpu_resource or _ACCELERATOR.fullmatch(resource)
            if wanted and amount:
                groups.setdefault((node.product, resource), []).append(node)
    for (product, resource), those in sorted(groups.items()):
        total = sum(node.total[resource] for node in those)
        free = sum((node.free or {}).get(resource, 0.0) for node in those)
        known = all(node.free is not None for node in those)
        told = f"{total:g} of {resource}" + (f", {free:g} of them free" if known else "")
        words = f"{counted(len(those), 'node')} with {product or 'accelerators'}: {told}."
        taints = dict.fromkeys(_taint(taint) for node in those for taint in node.taints)
        if taints:
            words += f" They have {some(taints)}, which no toleration of the run covers."
        down = [node.name for node in those if not node.ready]
        if down:
            words += f" {some(down)} takes no pods now."
        yield ok("accelerators", words)
    if not groups:
        yield ok("accelerators", f"{counted(len(found), 'node')}, none with an accelerator.")


def _fits(survey: Survey, found: list[Node], needs: Needs) -> Iterator[Finding]:
    amounts = needs.amounts
    usable = [node for node in found if node.ready and node.selected and not node.taints]
    ever = sum(node.holds(amounts, of=node.total) for node in usable)
    asked = _asked(needs)
    if ever < needs.num_nodes:
        yield _too_few(survey, found, needs, ever)
        return
    if any(node.free is None for node in usable):
        yield ok(_ABOUT, f"The nodes hold {asked}, where nothing else is in the way.")
        return
    now = sum(node.holds(amounts, of=node.free or {}) for node in usable)
    if now < needs.num_nodes:
        words = f"The nodes hold {asked}, but now only {now} of them: the rest waits."
        yield warning(_ABOUT, words, "kubectl get pods -A shows what is in the way.")
    else:
        yield ok(_ABOUT, f"{asked[0].upper()}{asked[1:]} fit now.")


def _too_few(survey: Survey, found: list[Node], needs: Needs, ever: int) -> Finding:
    """Why the pods never fit, the cause that alone keeps them off first."""
    amounts, asked = needs.amounts, _asked(needs)
    words = f"The run needs {asked}, and the nodes hold {ever} of them at most."

    def with_all(nodes: Iterable[Node]) -> bool:
        return ever + sum(node.holds(amounts, of=node.total) for node in nodes) >= needs.num_nodes

    tainted = [node for node in found if node.ready and node.selected and node.taints]
    if with_all(tainted):
        taints = [taint for node in tainted for taint in node.taints]
        names = some(dict.fromkeys(map(_taint, taints)))
        words += f" {some([node.name for node in tainted])} would, but for {names}."
        keys = {(str(taint["key"]), str(taint["effect"])) for taint in taints}
        tolerations = [
            {"key": key, "operator": "Exists", "effect": effect} for key, effect in sorted(keys)
        ]
        return error(_ABOUT, words, f"Set tolerations={json.dumps(tolerations)}.")
    other = [node for node in found if node.ready and not node.selected and not node.taints]
    if with_all(other):
        words += f" {some([node.name for node in other])} would, but the node selector is not met."
        return error(_ABOUT, words, "Correct node_selector: kubectl get nodes --show-labels.")
    down = [node for node in found if not node.ready and node.selected]
    if with_all(down):
        first = down[0].name
        words += f" {some([node.name for node in down])} would, and takes no pods now."
        mend = f"kubectl uncordon {first}, where it is cordoned; else kubectl describe node {first}"
        return error(_ABOUT, words, mend)
    if _grows(survey):
        return warning(_ABOUT, f"{words} The cluster's autoscaler may add some.")
    return error(_ABOUT, words, "Ask for less a node, for fewer nodes, or add nodes.")


def _grows(survey: Survey) -> bool:
    """Whether nodes may be added: there is Karpenter, or the status of the cluster autoscaler."""
    if survey.versions("karpenter.sh"):
        return True
    try:
        return survey.get(CONFIG_MAP, "cluster-autoscaler-status", "kube-system") is not None
    except Unreadable:
        return False


def _asked(needs: Needs) -> str:
    given = {needs.gpu_resource: needs.gpus_per_node, "cpu": needs.cpu, "memory": needs.memory}
    parts = [f"{amount} of {name}" for name, amount in given.items() if amount]
    return f"{counted(needs.num_nodes, 'pod')} with {some(parts)}"


def _taint(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"the taint {taint.get('key')}{value}:{taint.get('effect')}"
