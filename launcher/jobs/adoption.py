"""How a job that was adopted differs from the one that this attempt of the step would create."""

from __future__ import annotations

from kfp_pytorch.launcher.constants import SPEC_HASH_LABEL
from kfp_pytorch.launcher.jobs.kind import JobKind
from kfp_pytorch.launcher.kubernetes.objects import Object, dig
from kfp_pytorch.launcher.kubernetes.pod_status import container


def other_inputs(kind: JobKind, found: Object, wanted: Object) -> str:
    """Describe the differences between a job that was found and the one that is wanted.

    Returns a sentence, with the images where they differ; commands and arguments may hold secrets.
    Empty where both were made from the same inputs.
    """
    hashes = [dig(job, "metadata", "labels", SPEC_HASH_LABEL) for job in (found, wanted)]
    if hashes[0] == hashes[1]:
        return ""
    old, new = _container(kind, found), _container(kind, wanted)
    parts = [
        f"another {field}" for field in ("command", "args") if old.get(field) != new.get(field)
    ]
    if old.get("image") != new.get("image"):
        parts.insert(0, f"image {old.get('image')!r}, not {new.get('image')!r}")
    if kind.num_nodes(found) != kind.num_nodes(wanted):
        parts.append(f"{kind.num_nodes(found)} nodes, not {kind.num_nodes(wanted)}")
    shown = f": it has {', '.join(parts)}" if parts else ""
    words = "The job that was adopted was made from other inputs than this attempt of the step has"
    return f"{words}{shown}."


def _container(kind: JobKind, job: Object) -> Object:
    pods = kind.pod_templates(job)
    return container(pods[0], kind.container) if pods else {}
