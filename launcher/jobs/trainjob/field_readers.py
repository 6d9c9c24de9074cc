"""Readers of the inputs that only `train_job` has."""

from __future__ import annotations

import re
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import environment, k8s, readers, storage

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+", re.DOTALL)
_LONGEST_URI = 2048


def initializer(name: str, value: Any) -> dict[str, Any]:
    """Read an initializer: `storage_uri`, `env` and `secret`, into the form of a TrainJob."""
    given = readers.known_fields(name, value, ("storage_uri", "env", "secret"))
    if not given:
        return {}
    uri = readers.text(f"{name}.storage_uri", given.get("storage_uri"))
    if not _URI.fullmatch(uri) or len(uri) > _LONGEST_URI:
        raise InputError(
            f"{name}.storage_uri is {uri[:100]!r}; write SCHEME://PLACE of at most "
            f"{_LONGEST_URI:,} characters, such as hf://OWNER/NAME, s3://BUCKET/FOLDER or cache://SCHEMA/TABLE."
        )
    storage.check_no_password(uri, f"{name}.storage_uri")
    secret = k8s.dns_subdomain(f"{name}.secret", given.get("secret"))
    found: dict[str, Any] = {"storageUri": uri}
    if variables := environment.variables(f"{name}.env", given.get("env")):
        found["env"] = list(variables)
    return found | ({"secretRef": {"name": secret}} if secret else {})


def process_count(name: str, value: Any) -> str:
    """Read the number of processes in each pod, which a TrainJob takes as a number alone."""
    word = "" if readers.is_unset(value) else readers.rendered(name, value).strip()
    if word in ("auto", "cpu", "gpu"):
        raise InputError(
            f"{name} is {word!r}, which a TrainJob cannot have: write a number, or leave it out "
            "for one process for each GPU, or one."
        )
    return str(readers.integer(name, word, minimum=1, maximum=4096)) if word else ""
