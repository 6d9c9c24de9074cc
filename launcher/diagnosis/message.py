"""From evidence to one message: the most likely cause, what to do, then what it rests on."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass

from kfp_pytorch.launcher.diagnosis import (
    admission_causes,
    log_causes,
    pod_causes,
    scheduling,
    startup,
)
from kfp_pytorch.launcher.diagnosis.log_causes import Error
from kfp_pytorch.launcher.diagnosis.pod_causes import Finding
from kfp_pytorch.launcher.jobs.termination_messages import is_ours, read_messages
from kfp_pytorch.launcher.kubernetes import objects, pending, pod_status
from kfp_pytorch.launcher.kubernetes.events import event_object, event_words
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.kubernetes.pod_status import pod_phase
from kfp_pytorch.launcher.runtime.printing import printable
from kfp_pytorch.launcher.text import counted, some
from kfp_pytorch.launcher.waiting import refusals
from kfp_pytorch.launcher.waiting.evidence import Evidence

SHORT = 200
_TRACEBACK_LINES = 40
_LOG_LINES = 25
_LINE = 500
_EVENTS = 6
# The reason of the kubelet's events of a container that it will start again only later.
_BACK_OFF = "BackOff"
# Words of them that tell a pull from a restart; pods and containers come after.
_SAME_BACK_OFF = 3


@dataclass(frozen=True)
class Diagnosis:
    """Why a job failed, for a person.

    Attributes:
        message: The whole message.
        short: One line of at most 200 characters.
    """

    message: str
    short: str


# What ends a wait, besides the job's own failure, and what to do about it where nothing else that
# was seen tells more.
_ENDS = {
    "lost": "A person, a controller or a namespace's clean-up deleted it: ask who may. Start the "
    "step again: training goes on from its last checkpoint.",
    "deletion": "Its finalizers or a pod on a node that is gone hold it up: look with kubectl get "
    "pytorchjob -o yaml and kubectl get pods -o wide, then start the step again.",
    "acknowledge": "Check that the operator runs (kubectl get pods -A -l "
    "app.kubernetes.io/name=training-operator) and watches this namespace. What it says of the job "
    "is in its log and in `kubectl get events`.",
    "queue": pending.QUEUE_ADVICE,
    "start": "What its pods wait for is told here and below; if that only takes longer, raise "
    f"start_timeout. {pod_causes.KEEP_THE_PODS}",
    "run": "Raise timeout if training takes longer; a retry of the step goes on from the last "
    "checkpoint. If it hung, the last lines of its log say where.",
}
# These outrank a limit: they are why it is over. What an earlier restart was about is not.
_PRESENT = frozenset(
    {
        *(
            pod_causes.CANNOT_START,
            pod_causes.UNSCHEDULABLE,
            pod_causes.VOLUME,
            pod_causes.VOLUME + 3,
        ),
        *(pod_causes.NO_PODS, pod_causes.STUCK_INIT, pod_causes.SIDECAR, pod_causes.QUEUED),
    }
)


def diagnose(evidence: Evidence, cause: str, why: str = "failed") -> Diagnosis:
    """Say why a job did not succeed.

    Args:
        evidence: What was seen of it.
        cause: What ended the wait, as a sentence, such as a failed condition or a limit.
        why: `failed`, `lost`, `trouble`, or the name of the limit that is over.

    Returns:
        The diagnosis. Nothing in the evidence, however odd, makes this raise.
    """
    logs = _logs(evidence)
    pods = [*evidence.pods.values(), *evidence.past_pods]
    errors = log_causes.errors(evidence, read_messages(pods), logs)
    found = [
        *pod_causes.find(evidence),
        *startup.find(evidence),
        *scheduling.find(evidence),
        *admission_causes.find(evidence),
        *log_causes.find(evidence, errors, logs),
    ]
    if refusals.told(evidence):
        # An operator that says why it cannot make the pods is not silent.
        found = [finding for finding in found if finding.weight != pod_causes.SILENT_OPERATOR]
    found.sort(key=lambda finding: -finding.weight)
    cause = cause.strip() or "The job did not succeed"
    own = Finding(0, cause.rstrip("."), _own_advice(why, evidence))
    found = _led_by(found, own, why, _present(evidence, found))
    head, others = found[0], found[1:]
    told = any(finding.headline == cause.rstrip(".") for finding in found)
    parts = [
        f"{_clip(head.headline)}.\nWhat to do: {head.advice}",
        _section("What was seen", _seen(evidence, "" if told else cause, others, errors)),
        _traceback(errors),
        _log_tail(logs, errors, evidence),
        _section("What the launcher could not do", [f"- {note}" for note in evidence.notes]),
    ]
    return Diagnosis("\n\n".join(part for part in parts if part), _short(head.headline))


def _own_advice(why: str, evidence: Evidence) -> str:
    """What to do about what ended the wait, where nothing else that was seen tells more."""
    if not (evidence.pods or evidence.past_pods) and why in ("start", "failed"):
        job = objects.name(evidence.job)
        return (
            f"No pod of it was seen. `kubectl describe pytorchjob {job}` and the log of the "
            f"Training Operator may say why. {pod_causes.KEEP_THE_PODS}"
        )
    return _ENDS.get(why, f"What was seen of it is below. {pod_causes.KEEP_THE_PODS}")


def _present(evidence: Evidence, found: list[Finding]) -> Set[int]:
    """The weights of findings about what is so now."""
    waits = (wait for pod in evidence.pods.values() for wait in pod_status.waiting(pod))
    if any(reason == "CrashLoopBackOff" for _, reason, _ in waits):
        # What crashes again and again, whatever it is.
        return {finding.weight for finding in found}
    if any(pod_phase(p) == "Unknown" or pod_status.node_lost(p) for p in evidence.pods.values()):
        # A node that cannot be reached.
        return _PRESENT | {pod_causes.DISRUPTED}
    return _PRESENT


def _led_by(found: list[Finding], own: Finding, why: str, present: Set[int]) -> list[Finding]:
    """Put what ended the wait where it belongs among the findings: first is the likeliest cause."""
    if why in ("lost", "deletion", "acknowledge"):
        return [own, *(f for f in found if f.weight != pod_causes.SILENT_OPERATOR)]
    if why in ("queue", "start", "run"):
        first = [finding for finding in found if finding.weight in present]
        return [*first, own, *(finding for finding in found if finding not in first)]
    return found or [own]


def _logs(evidence: Evidence) -> dict[str, str]:
    """Return each pod's last lines; its termination message where the log could not be read.

    The message may say more than the log: a kubelet's own last line, such as why the log is cut.
    JSON is none of its lines, but what the program said in its own way.
    """
    # The colours of terminals come off; a bar that was drawn over and over becomes lines.
    logs = {pod: printable(log.replace("\r", "\n")) for pod, log in evidence.logs.items()}
    logs = {pod: log for pod, log in logs.items() if log.strip()}
    for pod in pod_status.in_order(evidence.pods.values()):
        for end in pod_status.ends(pod):
            message = end.message.strip()
            if message and not is_ours(message):
                log = logs.setdefault(end.pod, message)
                last = message.rpartition("\n")[2]
                own = pod_status.trains(end) and end.exit_code and end.current
                if own and last not in log and not last.startswith("{"):
                    logs[end.pod] = f"{log}\n{last}"
    return logs


def _short(headline: str) -> str:
    line = " ".join(headline.split())
    return line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"


def _clip(text: str) -> str:
    line = text.strip().rstrip(".")
    return line if len(line) <= 2 * _LINE else f"{line[: 2 * _LINE]}…"


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *lines]) if lines else ""


def _seen(evidence: Evidence, cause: str, others: list[Finding], errors: list[Error]) -> list[str]:
    lines = [f"- {cause}"] if cause else []
    failed = objects.condition(evidence.job, "Failed")
    words = str(failed.get("message") or "")
    if failed.get("status") == "True" and cause and words not in cause:
        lines.append(f"- The job is Failed ({failed.get('reason')}): {words}")
    lines += [f"- {_clip(finding.headline)}" for finding in others]
    lines += _pods(evidence, errors)
    lines += [f"- {line}" for line in _events(evidence)]
    return lines


def _pods(evidence: Evidence, errors: list[Error]) -> list[str]:
    """Describe the pods, those in the same state together, the first to fail first."""
    states: dict[str, list[str]] = {}
    for pod in _first_to_fail_first(evidence, errors):
        there = evidence.living is None or objects.name(pod) in evidence.living
        state = _state(pod) + ("" if there else ", now gone")
        states.setdefault(state, []).append(_named(pod))
    lines = [f"- {some(names)}: {state}" for state, names in states.items()]
    gone = len(evidence.past_pods)
    return lines + (
        [f"- {counted(gone, 'earlier pod')} of the same names, now gone"] if gone else []
    )


def _first_to_fail_first(evidence: Evidence, errors: list[Error]) -> list[Object]:
    ends = pod_status.failed_ends(evidence.pods.values())
    order = [*(error.pod for error in errors[:1]), *(end.pod for end in ends)]
    pods = pod_status.in_order(evidence.pods.values())
    return sorted(
        pods,
        key=lambda pod: (
            order.index(objects.name(pod)) if objects.name(pod) in order else len(order)
        ),
    )


def _named(pod: Object) -> str:
    node = objects.dig(pod, "spec", "nodeName")
    return f"{objects.name(pod)} on {node}" if node else objects.name(pod)


def _state(pod: Object) -> str:
    parts = [str(objects.dig(pod, "status", "phase") or "phase unknown")]
    parts += ["node lost"] * pod_status.node_lost(pod)
    for end in pod_status.ends(pod):
        when = "" if end.current else " before its restart"
        parts.append(f"{end.container} {end.reason} {pod_status.exit_words(end.exit_code)}{when}")
    parts += [f"{name} waits: {reason}" for name, reason, _ in pod_status.waiting(pod)]
    restarts = pod_status.restarts(pod)
    return ", ".join(parts) + (f", {counted(restarts, 'restart')}" if restarts else "")


def _events(evidence: Evidence) -> Iterator[str]:
    # The same trouble comes again in near-equal words, and at each pod: its last event is enough.
    last: dict[tuple[str, str], Object] = {}
    count: Counter[tuple[str, str]] = Counter()
    for event in reversed(evidence.events):
        if event.get("type") == "Normal":
            continue
        reason = str(event.get("reason") or "")
        words = event_words(event)
        if reason == _BACK_OFF:
            words = " ".join(words.split()[:_SAME_BACK_OFF])
        last.setdefault((reason, words), event)
        count[reason, words] += 1
    for (reason, words), event in itertools.islice(last.items(), _EVENTS):
        times = count[reason, words]
        more = f" (the last of {times} such events)" if times > 1 else ""
        said = event_words(event)[:_LINE]
        yield f"event {reason} of {event_object(event)}: {said}{more}"


def _traceback(errors: list[Error]) -> str:
    if not errors or not errors[0].traceback.strip():
        return ""
    first = errors[0]
    rank = f"rank {first.rank}, " if first.rank is not None else ""
    return f"The first error ({rank}{first.pod}):\n{_end(first.traceback, _TRACEBACK_LINES)}"


def _log_tail(logs: dict[str, str], errors: list[Error], evidence: Evidence) -> str:
    failed = [objects.name(pod) for pod in _first_to_fail_first(evidence, errors)]
    shown = errors[0].traceback.strip() if errors else ""
    for pod in [*failed, *logs]:
        if pod in logs:
            # Not twice, where the program wrote nothing but its traceback.
            again = logs[pod].strip() == shown
            return "" if again else f"The last lines of {pod}:\n{_end(logs[pod], _LOG_LINES)}"
    return ""


def _end(text: str, lines: int) -> str:
    """Return the last lines of a text, none of them endless."""
    every = [line[:_LINE] for line in text.rstrip().splitlines()]
    cut = [f"… {len(every) - lines} lines before"] if len(every) > lines else []
    return "\n".join(f"  {line}" for line in [*cut, *every[-lines:]])
