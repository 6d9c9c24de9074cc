"""The ordered list of causes. The first that holds is why the job failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kfp_pytorch.launcher.diagnosis import (
    collective_causes,
    job_causes,
    log_causes,
    pod_causes,
    scheduling_causes,
    start_causes,
)
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.kubernetes import pod_status
from kfp_pytorch.launcher.kubernetes.pod_status import pod_phase


def _always(facts: Facts) -> bool:
    del facts
    return True


def _in_crash_loop(facts: Facts) -> bool:
    """What crashes again and again is so now, whatever it is."""
    waits = (reason for pod in facts.pods for _, reason, _ in pod_status.waiting_containers(pod))
    return "CrashLoopBackOff" in waits


def _node_unreachable(facts: Facts) -> bool:
    lost = any(pod_phase(pod) == "Unknown" or pod_status.node_lost(pod) for pod in facts.pods)
    return lost or _in_crash_loop(facts)


class Rule(NamedTuple):
    """One row of the list.

    Attributes:
        is_current: Whether the cause is so now, so that it explains why a limit was reached. An
            error before an earlier restart does not.
    """

    find: Callable[[Facts], Cause | None]  # returns the cause, or None where it does not hold
    is_current: Callable[[Facts], bool] = _in_crash_loop


RULES: tuple[Rule, ...] = (
    # The most certain first: these make all other ranks fail with errors about lost connections.
    Rule(pod_causes.out_of_memory),
    Rule(pod_causes.disrupted, _node_unreachable),
    Rule(pod_causes.container_lost, _node_unreachable),
    # A container never ran.
    Rule(start_causes.container_waits, _always),
    Rule(start_causes.start_failed, _always),
    # The program says itself what is wrong.
    Rule(log_causes.exception),
    # Pods have no node, no volume, or were never made.
    Rule(scheduling_causes.unusable_claim, _always),
    Rule(scheduling_causes.unschedulable, _always),
    Rule(scheduling_causes.no_scheduler, _always),
    Rule(log_causes.known_line, _always),
    Rule(pod_causes.volume_or_sandbox, _always),
    Rule(job_causes.pods_refused, _always),
    # Something ended a process from outside.
    Rule(pod_causes.killed),
    Rule(log_causes.rank_killed),
    Rule(pod_causes.pod_deadline),
    Rule(job_causes.operator_deadline),
    # From here on it may be a consequence of something that is not in the evidence.
    Rule(collective_causes.peers_lost),
    Rule(log_causes.rank_ended_by_signal),
    Rule(pod_causes.exit_code),
    Rule(pod_causes.other_container_out_of_memory),
    Rule(pod_causes.init_container_waits, _always),
    Rule(pod_causes.init_container_fails, _always),
    Rule(pod_causes.sidecar_keeps_running, _always),
    Rule(job_causes.suspended, _always),
    Rule(job_causes.not_acknowledged),
)
_FIRST = ("lost", "deletion", "acknowledge", "export")
_LIMITS = ("queue", "start", "run", "active")


def ordered_causes(facts: Facts, end: Cause, why: str) -> list[Cause]:
    """Return the causes that hold, the likeliest first.

    `end` is what ended the wait, such as a limit; `why` is `failed`, `lost`, `trouble`, or the name
    of the limit that was reached. The order:

    - The job was deleted or not acknowledged, or its export is none: that, then the list.
    - A limit was reached: what is so now, the limit, the rest of the list.
    - Else the list, or only `end` where no cause holds.
    """
    found = [(rule, cause) for rule in RULES if (cause := rule.find(facts))]
    if why in _FIRST:
        return [end, *(c for rule, c in found if rule.find is not job_causes.not_acknowledged)]
    if why in _LIMITS:
        current = [cause for rule, cause in found if rule.is_current(facts)]
        return [*current, end, *(cause for _, cause in found if cause not in current)]
    return [cause for _, cause in found] or [end]
