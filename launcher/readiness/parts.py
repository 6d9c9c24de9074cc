"""Checks of what is installed: the server, the kinds, their controllers, and Kueue."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from kfp_pytorch.launcher.constants import CONFIG_MAP, DEPLOYMENT, NAMESPACE, Kind
from kfp_pytorch.launcher.jobs.registry import KINDS
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.client import EVERYWHERE
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.readiness.findings import Finding, error, ok, warning
from kfp_pytorch.launcher.readiness.needs import Needs
from kfp_pytorch.launcher.readiness.survey import Survey, Unreadable
from kfp_pytorch.launcher.readiness.uses import KUEUE, LOCAL_QUEUE, PARTS, USES, Part
from kfp_pytorch.launcher.text import some

_KUEUE_CONFIG = ("kueue-manager-config", "controller_manager_config.yaml")
# Kueue manages any pod where this integration is on.
_PODS = "pod"


def server(survey: Survey, _needs: Needs) -> Iterator[Finding]:
    """The API server answers, and has the namespace."""
    where = survey.kube.transport.credentials.address
    yield ok("API server", f"{where} is Kubernetes {survey.version()}.")
    name = survey.namespace
    if survey.may_read("get", NAMESPACE, "", name) and survey.get(NAMESPACE, name) is None:
        mend = f"kubectl create namespace {name}, or give the one that the run is in."
        yield error("namespace", f"There is no namespace {name}.", mend)


def installed(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """What the components need is installed and runs; to a person also what else there is."""
    absent, unread = [], []
    for part in PARTS:
        needed, optional = _needed(part, needs)
        if not needed and not survey.account:
            continue
        missing = _missing(survey, part)
        if missing and needed:
            level = warning if optional else error
            yield level(part.title, _told(survey, part, missing), part.install)
        elif missing:
            absent.append(part.title)
        else:
            try:
                yield _controllers(survey, part, needed and not optional)
            except Unreadable as reason:
                unread.append((part.title, str(reason)))
    if absent:
        yield ok("not installed", f"Nothing here needs {some(absent, len(absent))}.")
    if unread:
        titles = some([title for title, _ in unread], len(unread))
        yield warning(
            "controllers",
            f"Their kinds are served; whether the controllers of {titles} run is not known: this "
            f"account may not {unread[0][1]}.",
            "kubectl get deployments -A",
        )


def _needed(part: Part, needs: Needs) -> tuple[bool, bool]:
    """Whether the run uses a part, and whether it does without."""
    uses = [USES[name] for name in needs.components if part in USES[name].parts]
    queued = part is KUEUE and bool(needs.queue)
    return bool(uses) or queued, all(use.optional for use in uses) and not queued


def _missing(survey: Survey, part: Part) -> list[Kind]:
    if part.any_version:
        return [kind for kind in part.kinds if not survey.versions(kind.group)]
    return [kind for kind in part.kinds if not survey.serves(kind)]


def _told(survey: Survey, part: Part, missing: list[Kind]) -> str:
    names = some([f"{kind.plural}.{kind.group}/{kind.version}" for kind in missing])
    served = survey.versions(missing[0].group)
    there = f" It serves {missing[0].group} in {some(served)}." if served else ""
    return f"The cluster has no {names}: {part.title} is not installed, or another version.{there}"


def _controllers(survey: Survey, part: Part, needed: bool) -> Finding:
    """Whether the Deployments of a part are there and ready."""
    level = error if needed else warning
    everywhere = survey.may_read("list", DEPLOYMENT, EVERYWHERE)
    found = survey.list(DEPLOYMENT, EVERYWHERE if everywhere else part.namespace)
    names = []
    for name in part.deployments:
        deployment = next((each for each in found if name in objects.name(each)), None)
        if deployment is None and everywhere:
            words = f"The kinds are there, and no Deployment {name}: nothing acts on them."
            return level(part.title, words, part.install)
        if deployment is None:
            words = f"Its kinds are there; no Deployment {name} in namespace {part.namespace}."
            return warning(part.title, words, "kubectl get deployments -A")
        if problem := _not_ready(deployment, level, part):
            return problem
        names.append(objects.name(deployment))
    versions = [f"{kind.plural}.{kind.group}/{kind.version}" for kind in part.kinds]
    return ok(part.title, f"{some(versions)}; ready: {some(names)}.")


def _not_ready(deployment: Object, level: Callable[..., Finding], part: Part) -> Finding | None:
    name, namespace = objects.name(deployment), dig(deployment, "metadata", "namespace")
    wanted = dig(deployment, "spec", "replicas")
    ready = dig(deployment, "status", "readyReplicas") or 0
    if ready >= 1:
        return None
    if wanted == 0:
        words = f"Deployment {namespace}/{name} is scaled to 0: nothing acts on its kinds."
        mend = f"kubectl scale deployment {name} -n {namespace} --replicas=1"
    else:
        why = objects.condition(deployment, "Available").get("message") or "no pod is ready"
        words = f"Deployment {namespace}/{name} has no ready pod: {why}"
        mend = f"kubectl rollout restart deployment {name} -n {namespace}"
        mend += f"; where that does not help, kubectl describe pods -n {namespace}"
    return level(part.title, words, mend)


def queues(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """Kueue manages the jobs at all, and the queue is there and takes them."""
    versions = survey.versions(LOCAL_QUEUE.group)
    if not versions:
        return
    if needs.trains:
        yield from _integration(survey, needs)
    if needs.queue:
        kind = dataclasses.replace(LOCAL_QUEUE, version=versions[0])
        yield _queue(survey, needs.queue, survey.get(kind, needs.queue))


def _queue(survey: Survey, name: str, found: Object | None) -> Finding:
    about, where = "queue", f"LocalQueue {survey.namespace}/{name}"
    if found is None:
        return error(
            about,
            f"There is no {where}; a job with this label waits for ever.",
            f"kubectl get localqueues -n {survey.namespace} lists those that are there; an "
            "administrator makes one.",
        )
    active = objects.condition(found, "Active")
    if active.get("status") == "False":
        said = active.get("message") or active.get("reason")
        cluster_queue = dig(found, "spec", "clusterQueue")
        mend = f"kubectl describe clusterqueue {cluster_queue}"
        return error(about, f"{where} takes no job: {said}.", mend)
    return ok(about, f"{where} takes jobs.")


def _integration(survey: Survey, needs: Needs) -> Iterator[Finding]:
    name, key = _KUEUE_CONFIG
    kinds = [KINDS[each].resource for each in needs.components if each in KINDS]
    frameworks = [f"{kind.group}/{kind.kind.lower()}" for kind in kinds]
    try:
        config = survey.get(CONFIG_MAP, name, KUEUE.namespace)
    except Unreadable as reason:
        config, why = None, f"this account may not {reason}"
    else:
        why = f"there is no ConfigMap {KUEUE.namespace}/{name}"
    if config is None:
        if needs.queue:
            command = f"kubectl get configmap {name} -n {KUEUE.namespace} -o yaml"
            words = f"Whether Kueue manages {some(frameworks)} is not known: {why}."
            yield warning("Kueue", words, f"{command} has it, under integrations.frameworks.")
        return
    managed = managed_frameworks(str(dig(config, "data", key) or ""))
    for framework in frameworks:
        if {framework, _PODS} & managed:
            yield ok("Kueue", f"It manages {framework}.")
            continue
        level = error if needs.queue else warning
        yield level(
            "Kueue",
            f"It does not manage {framework}, as it is shipped: a job with a queue's label runs "
            "at once, past every quota of Kueue.",
            f"Add {framework!r} to integrations.frameworks by `kubectl edit configmap {name} -n "
            f"{KUEUE.namespace}`, then `kubectl rollout restart deployment {KUEUE.deployments[0]} "
            f"-n {KUEUE.namespace}`.",
        )


def managed_frameworks(config: str) -> set[str]:
    """Return the `integrations.frameworks` of Kueue's configuration, which is YAML.

    A step has no parser of YAML. The list is one of words, as Kueue ships it: a line each, or in
    brackets.
    """
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in config.split("\n")]
    found, inside = set(), -1
    for line in filter(None, lines):
        indent = len(line) - len(line.lstrip())
        if match := re.fullmatch(r"\s*frameworks:\s*(\[.*\])?", line):
            inside = indent
            found |= set(re.findall(r"[^\s\[\],'\"]+", match[1] or ""))
        elif inside >= 0:
            item = re.fullmatch(r"\s*-\s*['\"]?([^\s'\"]+)['\"]?", line)
            if item is None or indent < inside:
                inside = -1
            else:
                found.add(item[1])
    return found
