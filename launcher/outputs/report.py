"""The report of a run, in Markdown: what was submitted, what happened, where and with what."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.jobs.kind import JobInputs, JobKind
from kfp_pytorch.launcher.jobs.termination_messages import Outcome
from kfp_pytorch.launcher.kubernetes import objects, pod_status
from kfp_pytorch.launcher.kubernetes.objects import Object
from kfp_pytorch.launcher.outputs.markdown import table, text
from kfp_pytorch.launcher.runtime.printing import duration
from kfp_pytorch.launcher.waiting.evidence import Evidence

# A job may have hundreds of pods; the first ones and those that failed or restarted are shown.
_PODS_SHOWN = 40
_SECRET_NAMES = re.compile(r"token|secret|passw|credential|api_?key|access_?key|private", re.I)
# By the end of its name, so that --tokenizer and --max-tokens are still shown.
_SECRET_FLAG = re.compile(
    r"(-[\w.-]*(?:token|secret|passw(?:or)?d|credentials?|(?:api|access|private)[_-]?key))(=.*)?",
    re.IGNORECASE | re.DOTALL,
)
_LEFT_OUT = "(left out)"


def render(
    evidence: Evidence, inputs: JobInputs, manifest: Object, outcome: Outcome, diagnosis: str = ""
) -> str:
    """Write the report.

    `diagnosis`: why it failed, or an empty string. Returns markdown. Values of variables and flags
    whose names suggest secrets are left out.
    """
    sections = [
        f"# {evidence.kind.title(text(objects.name(manifest)))}",
        diagnosis and f"## Why it failed\n\n{_fenced(diagnosis)}",
        _hyperparameters(inputs),
        _summary(evidence, inputs, manifest, outcome),
        _metrics(outcome),
        _timeline(evidence),
        _nodes(evidence),
        _notes(evidence),
        f"## The job as submitted\n\n{_fenced(_json(redacted(evidence.kind, manifest)), 'json')}",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def redacted(kind: JobKind, manifest: Object) -> Object:
    """Copy a manifest without values of variables and flags whose names suggest secrets."""
    copied = copy.deepcopy(manifest)
    for template in kind.pod_templates(copied):
        spec = template.get("spec")
        for container in [*objects.each(spec, "containers"), *objects.each(spec, "initContainers")]:
            for variable in objects.each(container, "env"):
                if "value" in variable and _SECRET_NAMES.search(str(variable.get("name"))):
                    variable["value"] = _LEFT_OUT
            for words in ("command", "args"):
                if words in container:
                    container[words] = _redacted_words(container[words])
    return copied


def _redacted_words(words: Sequence[str]) -> list[str]:
    shown: list[str] = []
    is_secret = False
    for word in map(str, words):
        flag = _SECRET_FLAG.fullmatch(word)
        if flag is not None:
            shown.append(f"{flag[1]}={_LEFT_OUT}" if flag[2] else word)
        else:
            shown.append(_LEFT_OUT if is_secret else word)
        is_secret = flag is not None and not flag[2]
    return shown


def _hyperparameters(inputs: JobInputs) -> str:
    """KFP's UI shows placeholders in their place where a pipeline's parameters fill them in."""
    rows = [
        (name, _LEFT_OUT if _SECRET_NAMES.search(name) else value)
        for name, value in inputs.hyperparameters.items()
    ]
    return f"## Hyperparameters\n\n{table(('Name', 'Value'), rows)}" if rows else ""


def _summary(evidence: Evidence, inputs: JobInputs, manifest: Object, outcome: Outcome) -> str:
    success = outcome.success
    attempt = objects.dig(manifest, "metadata", "annotations", constants.ATTEMPT_ANNOTATION)
    seconds = seconds_running(evidence)
    rows = {
        "Namespace": objects.dig(manifest, "metadata", "namespace"),
        "Image": inputs.image,
        "Nodes × processes": f"{inputs.num_nodes} × {inputs.nproc_per_node}",
        "World size": (success and inputs.a_rank_reports and success.world_size) or None,
        "GPUs a node": inputs.gpus or None,
        "Folder": inputs.folder(objects.name(manifest)).uri,
        "Resumed from": inputs.resume_from.uri if inputs.resume_from else None,
        "Newest checkpoint": None if outcome.checkpoint is None else f"step {outcome.checkpoint}",
        "Attempt": attempt,
        "Restarts": sum(map(pod_status.restarts, evidence.pods.values())),
        "Training took": None if seconds is None else duration(seconds),
    }
    shown = table(("", ""), [(key, value) for key, value in rows.items() if value is not None])
    if success is None and not outcome.failures:
        shown += (
            "\n\nThe training container wrote no message of its own, so there are no metrics, "
            "curves or description of the model. What follows comes from the cluster's objects."
        )
    return shown


def seconds_running(evidence: Evidence) -> float | None:
    """Return how long the job ran, in seconds; None where its start or end was not seen."""
    started = [entry.time for entry in evidence.timeline if entry.what == "running"]
    ended = [entry.time for entry in evidence.timeline if entry.what in ("succeeded", "failed")]
    return (ended[-1] - started[0]).total_seconds() if started and ended else None


def _metrics(outcome: Outcome) -> str:
    if outcome.success is None or not outcome.success.metrics:
        return ""
    rows = [(name, f"{value:.6g}") for name, value in outcome.success.metrics.items()]
    return f"## Metrics\n\n{table(('Metric', 'Value'), rows)}"


def _timeline(evidence: Evidence) -> str:
    if not evidence.timeline:
        return ""
    # What happened before an adoption is learned later than the adoption itself.
    entries = sorted(evidence.timeline, key=lambda entry: entry.time)
    start = entries[0].time
    rows = [
        (
            entry.time.strftime("%Y-%m-%d %H:%M:%S"),
            f"+{duration((entry.time - start).total_seconds())}",
            entry.what,
            entry.detail,
        )
        for entry in entries
    ]
    return f"## Timeline\n\n{table(('Time (UTC)', 'After', 'What', 'Detail'), rows)}"


def _nodes(evidence: Evidence) -> str:
    seen = evidence.kind.in_order(evidence.pods.values())
    if not seen:
        return ""
    shown = _worth_showing(seen)
    rows = [
        (
            objects.name(pod),
            objects.dig(pod, "spec", "nodeName") or "never scheduled",
            _gpus(pod_status.container(pod, evidence.kind.container)),
            pod_status.restarts(pod),
            _state(pod),
        )
        for pod in shown
    ]
    rest = len(seen) - len(shown)
    more = f"\n\nAnd {rest} more pods without failures or restarts." if rest else ""
    gone = len(evidence.past_pods)
    more += f"\n\n{gone} earlier pods of the same names were replaced." if gone else ""
    return f"## Nodes\n\n{table(('Pod', 'Node', 'GPUs', 'Restarts', 'State'), rows)}{more}"


def _worth_showing(seen: Sequence[Object]) -> list[Object]:
    def has_failed(pod: Object) -> bool:
        return pod_status.restarts(pod) > 0 or any(
            end.exit_code != 0 for end in pod_status.container_ends(pod)
        )

    if len(seen) <= _PODS_SHOWN:
        return list(seen)
    chosen = [objects.name(pod) for pod in sorted(seen, key=has_failed, reverse=True)[:_PODS_SHOWN]]
    return [pod for pod in seen if objects.name(pod) in chosen]


def _gpus(container: Object) -> str:
    limits = objects.dig(container, "resources", "limits") or {}
    found = [f"{amount} {name}" for name, amount in limits.items() if "/" in name]
    return ", ".join(found) or "–"


def _state(pod: Object) -> str:
    phase = str(objects.dig(pod, "status", "phase") or "unknown")
    first = {str(status.get("name") or "") for status in pod_status.statuses(pod, init=True)}
    ends = [
        f"{f'{end.container}: ' if end.container in first else ''}"
        f"{end.reason} {pod_status.describe_exit_code(end.exit_code)}"
        for end in pod_status.container_ends(pod)
        # An init container that succeeded explains nothing.
        if end.container not in first or end.exit_code != 0
    ]
    return "; ".join([phase, *ends])


def _notes(evidence: Evidence) -> str:
    lines = "\n".join(f"- {text(note)}" for note in evidence.notes)
    return f"## Notes\n\n{lines}" if lines else ""


def _fenced(content: str, language: str = "text") -> str:
    """Put text into a code block that nothing in the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{content}\n{fence}"


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
