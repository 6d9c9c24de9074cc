"""Checks of the steps' account: its permissions, the launcher that it reads, what it pulls."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator

from kfp_pytorch.launcher.constants import CONFIG_MAP, PREFIX, SECRET, SERVICE_ACCOUNT
from kfp_pytorch.launcher.kubernetes import objects
from kfp_pytorch.launcher.kubernetes.api_errors import SOURCE_ROLE, granting
from kfp_pytorch.launcher.kubernetes.objects import dig, each
from kfp_pytorch.launcher.readiness.findings import Finding, error, ok, warning
from kfp_pytorch.launcher.readiness.needs import Needs
from kfp_pytorch.launcher.readiness.survey import Survey, Unreadable
from kfp_pytorch.launcher.readiness.uses import LAUNCHER_RULE, USES, Rule
from kfp_pytorch.launcher.reference import KEY, Reference
from kfp_pytorch.launcher.text import some

_LABEL = f"app.kubernetes.io/name={PREFIX}-launcher"


def launcher(survey: Survey, wanted: Reference) -> Iterator[Finding]:
    """The launcher's ConfigMap is there, with the content that the steps ask for."""
    where, about = f"ConfigMap {survey.namespace}/{wanted.name}", "launcher"
    install = f"kfp-pytorch launcher install -n {survey.namespace}"
    found = survey.get(CONFIG_MAP, wanted.name)
    if found is None:
        yield error(about, f"There is no {where}.{_others(survey, wanted)}", install)
        return
    try:
        content = base64.b64decode(str(dig(found, "binaryData", KEY) or ""))
    except binascii.Error:
        content = b""
    if hashlib.sha256(content).hexdigest() != wanted.sha256:
        delete = f"kubectl delete configmap {wanted.name} -n {survey.namespace}"
        yield error(about, f"{where} has other content than it should.", f"{delete} && {install}")
        return
    yield ok(about, f"{where} is there, with this version's content.")


def _others(survey: Survey, wanted: Reference) -> str:
    try:
        there = survey.list(CONFIG_MAP, labels=_LABEL)
    except Unreadable:
        return ""
    names = [objects.name(each) for each in there if objects.name(each) != wanted.name]
    return f" Other versions are there: {some(names)}." if names else ""


def account(survey: Survey, _needs: Needs) -> Iterator[Finding]:
    """The steps' account exists; in a step it does."""
    if survey.account and survey.get(SERVICE_ACCOUNT, survey.account) is None:
        yield error(
            "service account",
            f"There is no ServiceAccount {survey.namespace}/{survey.account}, which is to run the "
            "steps.",
            f"kubectl create serviceaccount {survey.account} -n {survey.namespace}, or name the "
            "one that runs the steps, in a multi-user Kubeflow default-editor.",
        )


def permissions(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """The account of the steps has each permission that the components use."""
    rules = [rule for name in needs.components for rule in USES[name].rules]
    lacking = {
        rule: verbs
        for rule in dict.fromkeys([LAUNCHER_RULE, *rules])
        if (not rule.kind or survey.serves(rule.kind)) and (verbs := _denied(survey, rule))
    }
    no_source = [rule for rule in lacking if rule.role == SOURCE_ROLE]
    for rule in no_source:
        del lacking[rule]
    needed = [_told(rule, verbs) for rule, verbs in lacking.items() if not rule.without]
    lesser = [
        f"{some([_told(*each) for each in lacking.items() if each[0].without == words])} ({words})"
        for words in dict.fromkeys(rule.without for rule in lacking if rule.without)
    ]
    mend = granting(survey.namespace, survey.account_name)
    for level, verbs in ((error, needed), (warning, lesser)):
        if verbs:
            words = f"{some(verbs, len(verbs))} in {survey.namespace}"
            yield level("permissions", f"{survey.account_name} may not {words}.", mend)
    if not lacking:
        may = f"{survey.account_name} may do all that the steps do"
        add = granting(survey.namespace, survey.account_name, SOURCE_ROLE)
        but = f", but take code along; where a pipeline has `source`: {add}" if no_source else ""
        yield ok("permissions", f"{may}{but}.")


def _denied(survey: Survey, rule: Rule) -> list[str]:
    verbs = rule.verbs.split()
    return [verb for verb in verbs if not survey.step_may(verb, rule.group, rule.resource)]


def _told(rule: Rule, verbs: list[str]) -> str:
    group = f".{rule.group}" if rule.group else ""
    return f"{'/'.join(verbs)} {rule.resource}{group}"


def images(survey: Survey, needs: Needs) -> Iterator[Finding]:
    """The account of the job's pods is there, and the Secrets that it pulls images with."""
    if not needs.trains:
        return
    name, about = needs.service_account or "default", "image pull"
    where = f"ServiceAccount {survey.namespace}/{name}"
    found = survey.get(SERVICE_ACCOUNT, name)
    if found is None:
        mend = f"kubectl create serviceaccount {name} -n {survey.namespace}"
        yield error(about, f"There is no {where}, which the job's pods run as.", mend)
        return
    secrets = [objects.name({"metadata": item}) for item in each(found, "imagePullSecrets")]
    for secret in secrets:
        if survey.may_read("get", SECRET, "", secret) and survey.get(SECRET, secret) is None:
            create = f"kubectl create secret docker-registry {secret} -n {survey.namespace}"
            options = "--docker-server=… --docker-username=… --docker-password=…"
            words = f"{where} pulls images with the Secret {secret}, which is not there."
            yield error(about, words, f"{create} {options}")
            return
    told = f"with {some(secrets)}" if secrets else "with no Secret: from public registries"
    yield ok(about, f"The job's pods run as {where} and pull images {told}.")
