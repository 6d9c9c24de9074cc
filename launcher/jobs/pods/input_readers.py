"""Readers of the inputs of jobs of pods: each takes an input's name and value and checks it."""

from __future__ import annotations

import re
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers

# The launcher polls every 30 s while watches break; a job that is gone after fewer than four
# polls could have ended unseen. In seconds, as all times here.
TTL_MINIMUM = 120
# The operator's `None`, which holds GPUs after the end, is written Keep: KFP's unset is 'None'.
CLEAN_POD_POLICIES = {"Running": "Running", "All": "All", "Keep": "None"}


def training_image(name: str, value: Any) -> str:
    """Read the training image, which must be given."""
    image = k8s.image(name, value)
    if not image:
        raise InputError(f"{name} is not set; give the name of the training image.")
    return image


def job_name(name: str, value: Any) -> str:
    """Read the readable part of the job's name."""
    word = readers.text(name, value)
    if not re.search(r"[A-Za-z0-9]", word):
        raise InputError(
            f"{name} is {word!r}, which no job can be called after; it needs a letter a-z or a "
            "digit."
        )
    return word


def command(name: str, value: Any) -> tuple[str, ...]:
    """Read a container's command, as a list or as one text."""
    return readers.command(name, value, f"; leave {name} out for the image's own")


def hyperparameters(name: str, value: Any) -> dict[str, str]:
    """Read the hyperparameters, their values rendered."""
    given = readers.mapping(name, value)
    for key in given:
        if not re.fullmatch(r"[^\s=-][^\s=]*", readers.encodable(name, key)):
            raise InputError(
                f"{name} has the key {key!r}; it becomes --KEY=VALUE, so write it without dashes "
                "before it, and without blanks and '='."
            )
    return {key: readers.rendered(f"{name}[{key!r}]", item) for key, item in given.items()}


def processes(name: str, value: Any) -> str:
    """Read the number of processes in each pod; unset gives ''."""
    word = "" if readers.is_unset(value) else readers.rendered(name, value).strip()
    if word in ("", "auto", "cpu", "gpu"):
        return word
    if not word.lstrip("+-").isdecimal():
        raise InputError(f"{name} is {word!r}; it must be a number, auto, cpu or gpu.")
    return str(readers.integer(name, word, minimum=1, maximum=4096))


def shm_size(name: str, value: Any) -> str:
    """Read the size of /dev/shm; '0' for the runtime's own."""
    off = str(value).strip() in ("0", "0.0")
    return "0" if off else k8s.quantity(name, value, minimum="1Mi")


def pull_secrets(name: str, value: Any) -> tuple[str, ...]:
    """Read the names of Secrets, each once, as the API server requires."""
    secrets = [
        k8s.dns_subdomain(f"{name}[{i}]", secret)
        for i, secret in enumerate(readers.strings(name, value))
    ]
    return tuple(dict.fromkeys(secrets))


def _unreserved(name: str, pairs: dict[str, str]) -> dict[str, str]:
    for key in pairs:
        if key.startswith((f"{constants.PREFIX}/", "training.kubeflow.org/")):
            raise InputError(f"{name} may not have {key!r}: the launcher and the operator set it.")
    return pairs


def job_labels(name: str, value: Any) -> dict[str, str]:
    """Read labels other than the launcher's and the operator's."""
    return _unreserved(name, k8s.label_map(name, value))


def job_annotations(name: str, value: Any) -> dict[str, str]:
    """Read annotations other than the launcher's and the operator's."""
    return _unreserved(name, k8s.annotation_map(name, value))


def ttl(name: str, value: Any) -> int:
    """Read how long a finished job is kept, in seconds."""
    ttl = readers.integer(name, value, minimum=-1)
    if 0 <= ttl < TTL_MINIMUM:
        raise InputError(
            f"{name} is {ttl}; a finished job must be kept at least {TTL_MINIMUM} seconds, or "
            "it may be gone before the launcher has seen how it ended. -1 keeps it for ever."
        )
    return ttl


def clean_pod_policy(name: str, value: Any) -> str:
    """Read which pods are deleted at the job's end, as the operator names it."""
    return CLEAN_POD_POLICIES[readers.choice(name, value, tuple(CLEAN_POD_POLICIES))]


def template_patch(name: str, value: Any) -> dict[str, Any]:
    """Read a patch of the pod template."""
    parts = readers.known_fields(name, value, ("metadata", "spec"))
    read = {key: readers.mapping(f"{name}.{key}", part) for key, part in parts.items()}
    for key in ("labels", "annotations"):
        readers.mapping(f"{name}.metadata.{key}", read.get("metadata", {}).get(key))
    return read
