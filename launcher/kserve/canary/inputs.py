"""The inputs of `kserve_rollout`: their declaration and their checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers
from kfp_pytorch.launcher.inputs.declaration import declare
from kfp_pytorch.launcher.kserve import input_readers

PROMOTE, ROLLBACK = "promote", "rollback"
_REVISION = re.compile(r"[0-9a-f]{16}")


def _revision(name: str, value: Any) -> str:
    text = readers.text(name, value)
    if text and not _REVISION.fullmatch(text):
        raise InputError(
            f"{name} is {text!r}; it must be the output revision of kserve_deploy, 16 hexadecimal "
            "digits, or empty for whatever the canary is."
        )
    return text


@dataclass(frozen=True)
class RolloutInputs:
    """The checked inputs of `kserve_rollout`."""

    service_name: str = declare(input_readers.service_name, None)
    action: str = declare(readers.one_of(PROMOTE, ROLLBACK), None)
    revision: str = declare(_revision, "")
    namespace: str = declare(k8s.dns_label, "")
    timeout: int = declare(partial(readers.integer, minimum=1), 900)
