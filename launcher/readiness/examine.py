"""Runs the checks, each by itself, and collects what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from kfp_pytorch.launcher.errors import CannotObserve, StepError
from kfp_pytorch.launcher.readiness import access, nodes, parts, places, quotas, serving
from kfp_pytorch.launcher.readiness.findings import Finding, error, warning
from kfp_pytorch.launcher.readiness.needs import Needs
from kfp_pytorch.launcher.readiness.survey import Survey, Unreadable
from kfp_pytorch.launcher.reference import Reference
from kfp_pytorch.launcher.text import some

Check = Callable[[Survey, Needs], Iterator[Finding]]
READING_MANIFEST = "manifests/preflight"
_READING_ROLE = "kfp-pytorch-preflight"
_CHECKS: tuple[Check, ...] = (
    parts.installed,
    parts.queues,
    access.account,
    access.permissions,
    access.images,
    nodes.nodes,
    quotas.quotas,
    places.places,
    serving.runtimes,
)


def examine(survey: Survey, needs: Needs, launcher: Reference | None = None) -> list[Finding]:
    """Look whether a cluster is ready for a run.

    Args:
        survey: The reads of the cluster.
        needs: What the run will need.
        launcher: The ConfigMap that the steps read; None where they get the launcher otherwise.

    Returns:
        The findings, in the order of the checks. A cluster that does not answer is one of them.
    """
    checks = list(_CHECKS)
    if launcher:
        checks.insert(2, lambda seen, _: access.launcher(seen, launcher))
    found: list[Finding] = []
    unread: dict[str, None] = {}
    try:
        for check in (parts.server, *checks):
            found += _run(partial(check, survey, needs), unread)
    except CannotObserve as problem:
        lines = problem.message.split("\n")
        mend = " ".join(lines[1:]) or "Check that the API server runs and can be reached."
        found.append(error("API server", lines[0], mend))
    if unread:
        words = f"{_who(survey)} may not {some(unread, len(unread))}, so not all could be seen."
        found.append(warning("not checked", words, _grant(survey)))
    return found


def _run(check: Callable[[], Iterator[Finding]], unread: dict[str, None]) -> list[Finding]:
    """The findings of a check, up to where it could not read on."""
    found: list[Finding] = []
    try:
        for finding in check():
            found.append(finding)
    except Unreadable as reason:
        unread[str(reason)] = None
    except CannotObserve:
        raise
    except StepError as problem:
        found.append(warning("not checked", problem.short))
    return found


def _who(survey: Survey) -> str:
    return "This user" if survey.account else survey.account_name


def _grant(survey: Survey) -> str:
    if survey.account:
        return "Run this as an administrator of the cluster."
    owner, _, account = survey.account_name.removeprefix("system:serviceaccount:").partition(":")
    subject = f"--serviceaccount={owner}:{account}" if account else f"--user='{owner}'"
    return (
        f"To see it here too, `kubectl apply -n {survey.namespace} -k {READING_MANIFEST}` and "
        f"`kubectl create clusterrolebinding {_READING_ROLE}-{owner} "
        f"--clusterrole={_READING_ROLE} {subject}`; or run kfp-pytorch doctor."
    )
