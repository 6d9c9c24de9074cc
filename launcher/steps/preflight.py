"""The step `preflight`: whether the cluster is ready for the run, before anything long begins."""

from __future__ import annotations

from typing import Any

from kfp_pytorch.launcher.errors import StepError
from kfp_pytorch.launcher.kubernetes.client import connect
from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
from kfp_pytorch.launcher.readiness import findings
from kfp_pytorch.launcher.readiness.examine import examine
from kfp_pytorch.launcher.readiness.findings import ERROR, WARNING, Finding
from kfp_pytorch.launcher.readiness.needs import parse_needs
from kfp_pytorch.launcher.readiness.survey import Survey
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.printing import log, printable

# As long as an API server takes to start.
_POLICY = RetryPolicy(unavailability_budget=45.0, first_contact=45.0, connect=5.0, read=10.0)


class NotReady(StepError):
    """The cluster lacks something that the run needs."""


def run(report: Artifact, **inputs: Any) -> str:
    """Look whether the cluster is ready for the run; nothing is changed.

    `report`: gets all findings as a table in Markdown. Returns how many findings there are of each
    level. Raises InputError: an input cannot work. Raises NotReady: with all errors in one message.
    """
    needs = parse_needs(**inputs)
    found = examine(Survey(connect(needs.namespace, policy=_POLICY, notify=log)), needs)
    # KFP uploads no artifact of a failed step; a local run keeps it.
    write(report, printable(findings.table(found)))
    if findings.worst(found) == ERROR:
        raise _not_ready(found)
    for each in found:
        if each.level == WARNING:
            log(f"warning: {each.about}: {each.what} {each.mend}")
    log(f"The cluster is ready: {findings.counted(found)}.")
    return findings.counted(found)


def _not_ready(found: list[Finding]) -> NotReady:
    errors = [each for each in found if each.level == ERROR]
    title = f"The cluster is not ready for this run: {findings.counted(found)}."
    short = "; ".join(f"{each.about}: {each.what}" for each in errors)
    return NotReady(f"{title}\n{findings.message(found)}", f"the cluster is not ready: {short}")
