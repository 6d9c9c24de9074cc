"""Causes: a container does not start, by the kubelet's messages. Pure functions of the facts."""

from __future__ import annotations

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.kubernetes import objects, pod_status

START_ERRORS = ("StartError", "ContainerCannotRun")
_WAITING = {
    "ErrImagePull": "cannot pull the image",
    "ImagePullBackOff": "cannot pull the image",
    "InvalidImageName": "has an image whose name is not valid",
    "ErrImageNeverPull": "may not pull the image and its node does not have it",
    "RegistryUnavailable": "cannot reach the image's registry",
    "ImageInspectError": "has an image that cannot be read",
    "SignatureValidationFailed": "has an image without the signature that its nodes want",
    "CreateContainerConfigError": "cannot be configured",
    "CreateContainerError": "cannot be created",
    "RunContainerError": "cannot be started",
}
_LONG = 160


def container_waits(facts: Facts) -> Cause | None:
    """The kubelet cannot start a container: its image, its configuration, its command."""
    added = facts.kind.init_container
    for pod in facts.all_pods:
        waits = [found for found in pod_status.waiting_containers(pod) if found[1] in _WAITING]
        if not waits:
            continue
        name, reason, words = waits[0]
        image = pod_status.container(pod, name).get("image", "")
        inits = [c.get("name") for c in objects.each(pod, "spec", "initContainers")]
        which = f"the init container {name!r}" if name in inits else f"container {name!r}"
        return Cause(
            f"{objects.name(pod)}: {which} {_WAITING[reason]}, {reason}, image "
            f"{image!r}: {_shortened(words)}",
            added.image_advice if added and name == added.name else advice(reason, words),
        )
    return None


def start_failed(facts: Facts) -> Cause | None:
    """A container's command could not be executed."""
    end = next((end for end in facts.failed_ends if end.reason in START_ERRORS), None)
    if end is None:
        return None
    words = _without_runtime(end.message)
    return Cause(
        f"{end.pod}: container {end.container!r} cannot be started ({end.reason}): {words}",
        advice("RunContainerError", words),
    )


def advice(reason: str, words: str) -> str:
    """Return what to do about a container that does not start.

    `reason`: the kubelet's reason, such as `ErrImagePull`.
    """
    return patterns.advice("start", words) or patterns.advice("waiting", reason)


def _shortened(words: str) -> str:
    """Leave out the runtime's account of its own layers where what matters comes late."""
    match, _ = patterns.first("start", words)
    if match is None or len(words) <= _LONG or not match.start():
        return words
    start = words.rfind(": ", 0, match.start() + 1)
    return f"… {words[start + 2 :]}" if start > 0 else words


def _without_runtime(words: str) -> str:
    """Leave out the container runtime's account of its own layers: the reason comes last."""
    return words.rpartition("unable to start container process: ")[2].strip()
