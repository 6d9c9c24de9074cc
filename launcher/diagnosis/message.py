"""Renders the message: the most likely cause, what to do, then the evidence."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.constants import ATTEMPT_ANNOTATION
from kfp_pytorch.launcher.diagnosis.causes import ordered_causes
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts, facts_of
from kfp_pytorch.launcher.diagnosis.job_causes import check_the_operator
from kfp_pytorch.launcher.jobs.state import Phase
from kfp_pytorch.launcher.jobs.termination_messages import (
    is_ours,
    read_messages,
    says_no_checkpoint,
)
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.events import event_message, event_object
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import ContainerEnd
from kfp_pytorch.launcher.text import counted, cut, for_resume, settled, some
from kfp_pytorch.launcher.waiting.evidence import Evidence

SHORT = 200
_TRACEBACK_LINES = 40
_LOG_LINES = 25
_LINE = 500
_EVENTS = 3
_EVENT = 250
_CONTAINER_END = " terminated message: "
# The reason of the kubelet's events of a container that it will start again only later.
_BACK_OFF = "BackOff"
# How many words of them distinguish a pull from a restart; the names come after.
_SAME_BACK_OFF = 3
# Lower exit codes are of programs that ended by themselves.
_FIRST_SIGNAL = 129


@dataclass(frozen=True)
class Diagnosis:
    """Why a job failed, for a person."""

    message: str  # the whole message
    short: str  # one line of at most 200 characters


def diagnose(evidence: Evidence, cause: str, why: str = "failed") -> Diagnosis:
    """Return why a job did not succeed.

    `cause`: what ended the wait, as a sentence, such as a failed condition or a limit; `why`:
    `failed`, `lost`, `trouble`, or the name of the limit that was reached. Returns the diagnosis.
    Nothing in the evidence, however odd, makes this raise.
    """
    facts = facts_of(evidence)
    end = (cause.strip() or "The job did not succeed").rstrip(".")
    causes = ordered_causes(facts, Cause(end, _end_advice(why, evidence)), why)
    head = causes[0]
    parts = [
        f"{_clip(head.headline)}.\nWhat to do: {head.advice}",
        _folder(facts),
        _section("What was seen", _seen(facts, end, causes)),
        _traceback(facts),
        _log_tail(facts),
        _section("What the launcher could not do", [f"- {note}" for note in evidence.notes]),
    ]
    return Diagnosis(
        "\n\n".join(part for part in parts if part), cut(" ".join(head.headline.split()), SHORT)
    )


def _folder(facts: Facts) -> str:
    """Name the job's folder to resume from, where there may be a checkpoint in it."""
    folder = facts.evidence.folder
    if not folder or not _may_have_run(facts):
        return ""
    ends = [end for end in facts.failed_ends if facts.kind.trains(end)]
    outcome = read_messages(facts.all_pods)
    succeeded = not ends and outcome.success is not None
    if (ends and all(map(_wrote_no_checkpoint, ends))) or (
        succeeded and outcome.checkpoint is None
    ):
        return f"The job's folder is {folder}."
    return f"The job's folder, {for_resume(folder, outcome.checkpoint)}"


def _wrote_no_checkpoint(end: ContainerEnd) -> bool:
    """Whether it says so, or is a program that knows nothing of checkpoints, and so of messages."""
    if is_ours(end.message):
        return says_no_checkpoint(end.message)
    # What a signal ended had no time for a message.
    return end.exit_code < _FIRST_SIGNAL


def _may_have_run(facts: Facts) -> bool:
    """Whether a program may have run: of this job, or of an earlier attempt in its folder."""
    job, main = facts.evidence.job, facts.kind.container
    if objects.dig(job, "metadata", "annotations", ATTEMPT_ANNOTATION) not in (None, "1"):
        return True
    statuses = [pod_status.container_status(pod, main) for pod in facts.all_pods]
    ran = any(
        objects.dig(status, part, state) is not None
        for status in statuses
        for part in ("state", "lastState")
        for state in ("running", "terminated")
    )
    # Of pods in another cluster nothing is known.
    return ran or not facts.kind.expected_pods(job)


def _end_advice(why: str, evidence: Evidence) -> str:
    kind = evidence.kind
    if not (evidence.pods or evidence.past_pods) and why in ("start", "failed"):
        job = objects.name(evidence.job)
        return (
            f"No pod of it was seen. `kubectl describe {kind.kubectl_name} {job}` and the log of "
            f"the {kind.operator} may say why. {kind.keep_pods_advice}"
        )
    advice = patterns.advice("end", why) or "What was seen of it is below. {keep_pods}"
    return advice.format(
        word=kind.kubectl_name, operator=check_the_operator(kind), keep_pods=kind.keep_pods_advice
    )


def _clip(headline: str) -> str:
    return cut(headline.strip().rstrip("."), 2 * _LINE)


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *lines]) if lines else ""


def _seen(facts: Facts, end: str, causes: list[Cause]) -> list[str]:
    lines = []
    if all(cause.headline != end for cause in causes):
        lines.append(f"- {end}.")
        state = facts.state
        if state.phase is Phase.FAILED and state.message.rstrip(".") not in end:
            lines.append(f"- The job is Failed ({state.reason}): {state.message}")
    lines += [f"- {_clip(cause.headline)}" for cause in causes[1:]]
    lines += _pods(facts)
    lines += [f"- {line}" for line in _events(facts.evidence)]
    return lines


def _pods(facts: Facts) -> list[str]:
    """Describe the pods, those in the same state together, the first to fail first."""
    states: dict[str, list[str]] = {}
    living = facts.evidence.living
    for pod in _first_to_fail_first(facts):
        there = living is None or objects.name(pod) in living
        state = _state(pod) + ("" if there else ", now gone")
        states.setdefault(state, []).append(_named(pod))
    lines = [f"- {some(names)}: {state}" for state, names in states.items()]
    gone = len(facts.evidence.past_pods)
    return lines + (
        [f"- {counted(gone, 'earlier pod')} of the same names, now gone"] if gone else []
    )


def _first_to_fail_first(facts: Facts) -> list[Object]:
    order = [error.pod for error in facts.errors[:1]]
    order += [end.pod for end in pod_status.failed_ends(facts.pods)]
    rank = {name: place for place, name in reversed(list(enumerate(order)))}
    return sorted(facts.pods, key=lambda pod: rank.get(objects.name(pod), len(order)))


def _named(pod: Object) -> str:
    node = objects.dig(pod, "spec", "nodeName")
    return f"{objects.name(pod)} on {node}" if node else objects.name(pod)


def _state(pod: Object) -> str:
    parts = [str(objects.dig(pod, "status", "phase") or "phase unknown")]
    parts += ["node lost"] * pod_status.node_lost(pod)
    for end in pod_status.container_ends(pod):
        when = "" if end.current else " before its restart"
        parts.append(
            f"{end.container} {end.reason} {pod_status.describe_exit_code(end.exit_code)}{when}"
        )
    parts += [f"{name} waits: {reason}" for name, reason, _ in pod_status.waiting_containers(pod)]
    restarts = pod_status.restarts(pod)
    return ", ".join(parts) + (f", {counted(restarts, 'restart')}" if restarts else "")


def _events(evidence: Evidence) -> Iterator[str]:
    # The same event recurs in almost the same words, and at each pod: the last one is enough.
    kind = evidence.kind.resource.kind
    last: dict[tuple[str, str], Object] = {}
    count: Counter[tuple[str, str]] = Counter()
    for event in reversed(evidence.events):
        reason, words = str(event.get("reason") or ""), event_message(event)
        # The operator repeats its conditions as events, and a container's end with its message.
        repeated = reason.startswith(kind) or _CONTAINER_END in words
        if event.get("type") == "Normal" or repeated:
            continue
        if reason == _BACK_OFF:
            words = " ".join(words.split()[:_SAME_BACK_OFF])
        last.setdefault((reason, words), event)
        count[reason, words] += 1
    for (reason, words), event in itertools.islice(last.items(), _EVENTS):
        times = count[reason, words]
        more = f" (the last of {times} such events)" if times > 1 else ""
        shown = event_message(event)[:_EVENT]
        yield f"event {reason} of {event_object(event)}: {shown}{more}"


def _traceback(facts: Facts) -> str:
    if not facts.errors or not facts.errors[0].traceback.strip():
        return ""
    first = facts.errors[0]
    rank = f"rank {first.rank}, " if first.rank is not None else ""
    return f"The first error ({rank}{first.pod}):\n{_last_lines(first.traceback, _TRACEBACK_LINES)}"


def _log_tail(facts: Facts) -> str:
    shown = facts.errors[0].traceback.strip() if facts.errors else ""
    failed = [objects.name(pod) for pod in _first_to_fail_first(facts)]
    pod = next((pod for pod in [*failed, *facts.logs] if pod in facts.logs), "")
    # Not twice, where the program wrote nothing but its traceback.
    if not pod or facts.logs[pod].strip() == shown:
        return ""
    return f"The last lines of {pod}:\n{_last_lines(facts.logs[pod], _LOG_LINES)}"


def _last_lines(text: str, lines: int) -> str:
    """Return the last lines of a text, each at most 500 characters."""
    every = [line[:_LINE] for line in settled(text).rstrip().split("\n")]
    cut = [f"… {len(every) - lines} lines before"] if len(every) > lines else []
    return "\n".join(f"  {line}" for line in [*cut, *every[-lines:]])
