"""Causes: a container does not start, in the kubelet's words. Pure functions of the facts."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_pytorch.launcher import patterns
from kfp_pytorch.launcher.diagnosis.facts import Cause, Facts
from kfp_pytorch.launcher.kubernetes import objects, pod_status

START_ERRORS = ("StartError", "ContainerCannotRun")


@dataclass(frozen=True)
class Reason:
    """What one of the kubelet's reasons means for a person."""

    words: str
    advice: str


_PULL = "Check the image's name and tag, and image_pull_secrets if its registry is private."
_NO_PROGRAM = "Check command, and that the image has that program."
_WAITING = {
    "ErrImagePull": Reason("cannot pull the image", _PULL),
    "ImagePullBackOff": Reason("cannot pull the image", _PULL),
    "InvalidImageName": Reason("has an image whose name is not valid", _PULL),
    "ErrImageNeverPull": Reason(
        "may not pull the image and its node does not have it",
        "Change image_pull_policy, or load the image onto the nodes.",
    ),
    "RegistryUnavailable": Reason("cannot reach the image's registry", _PULL),
    "ImageInspectError": Reason("has an image that cannot be read", _PULL),
    "SignatureValidationFailed": Reason(
        "has an image without the signature that its nodes want",
        "Use a signed image, or ask an administrator for the nodes' policy.",
    ),
    "CreateContainerConfigError": Reason(
        "cannot be configured",
        "Create the Secret or ConfigMap that is named, or correct its name. If the image must run "
        "as root, set run_as_root; if it has a user of its own, set run_as_user.",
    ),
    "CreateContainerError": Reason("cannot be created", "See the kubelet's words."),
    "RunContainerError": Reason("cannot be started", _NO_PROGRAM),
}
# Its message may say more. The first that fits counts; the match begins what matters of it.
_KNOWN = (
    (
        r"no match for platform|no matching manifest for|no image found in|exec format error",
        "The image is for another kind of processor than the node has: build it for that one, or "
        "choose nodes by node_selector (kubernetes.io/arch).",
    ),
    (
        r"toomanyrequests|429 Too Many Requests",
        "The registry limits how often images are pulled: log in by image_pull_secrets, or mirror "
        "the image.",
    ),
    (
        r"pull access denied|unauthorized|authentication required|no basic auth credentials"
        r"|401 Un|403 Forb|(?<!permission )denied:",
        "The registry does not let it be pulled: check the image's name, and name the Secret of "
        "the registry in image_pull_secrets.",
    ),
    (
        r"(?:unexpected[^\n]{0,200}: )?404 Not Found"
        r"|manifest unknown|manifest for .* not found|: not found|name unknown",
        "The registry has no such image: check its name and tag.",
    ),
    (
        r"(?:dial tcp[^\n]{0,120}: )?"
        r"(?:no such host|i/o timeout|connection refused|network is unreachable|EOF$"
        r"|TLS handshake timeout|Client\.Timeout exceeded)",
        "The node does not reach the registry: check the registry's name; an administrator checks "
        "the node's network, its DNS and its proxy.",
    ),
    (
        r"x509:|tls:|server gave HTTP response",
        "The node does not trust the registry's certificate: an administrator adds it there.",
    ),
    (
        r"unexpected (?:HTTP )?status(?: code)?[^\n]{0,200}?: 5\d\d",
        "The registry has an error: start the step again later, or mirror the image.",
    ),
    (
        r"unsatisfied condition: cuda",
        "The image's CUDA is newer than the node's driver: use an image with an older CUDA, or "
        "choose nodes with a newer driver.",
    ),
    (
        r"nvidia-container-cli|nvml error|unresolvable CDI devices",
        "The node's GPUs do not work: an administrator checks its driver and container toolkit. "
        "To avoid it until then, use node_selector or affinity.",
    ),
    (r"OOM-killed|memory limit too low", "No program starts with so little memory: raise memory."),
    (r"no command specified", "The image names no program of its own: set command."),
    (
        r"error mounting|[Ff]ailed to (?:create|prepare) sub[Pp]ath",
        "What is mounted there does not fit the image or the volume: check the task's mounts and "
        "pod_template_patch.",
    ),
    (
        r"no space left on device",
        "The node's disk is full: an administrator frees it, or choose another node.",
    ),
    (
        r"permission denied",
        "That file may not be executed: make it executable in the image, or let command begin with "
        "its interpreter.",
    ),
    (
        r"runAsNonRoot",
        "The image runs as root, which is not allowed here: give it a user of its own by "
        "run_as_user, or set run_as_root where the namespace allows that.",
    ),
    (
        r"(?i)couldn't find key|(?:secret|configmap) .*not found",
        "Create the Secret or ConfigMap that is named, with that key, or correct its name.",
    ),
)
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
            f"{objects.name(pod)}: {which} {_WAITING[reason].words}, {reason}, image "
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
    return patterns.advice(_KNOWN, words) or _WAITING[reason].advice


def _shortened(words: str) -> str:
    """Leave out the runtime's account of its own layers where what matters comes late."""
    match, _ = patterns.first(_KNOWN, words)
    if match is None or len(words) <= _LONG or not match.start():
        return words
    start = words.rfind(": ", 0, match.start() + 1)
    return f"… {words[start + 2 :]}" if start > 0 else words


def _without_runtime(words: str) -> str:
    """Leave out the container runtime's account of its own layers: the reason comes last."""
    return words.rpartition("unable to start container process: ")[2].strip()
