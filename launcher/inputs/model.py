"""Where a Model lies, by what KFP hands over of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_pytorch.launcher.constants import SCRIPT_GUIDE
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.text import cut

_SHORT_REASON = 160


def place(model_uri: str, metadata: Mapping[str, Any], purpose: str) -> str:
    """Return where a model lies; of one that somebody imported, that is the artifact's URI.

    `metadata`: the artifact's. `purpose`: what is done with the model, such as `deploy`. Raises
    InputError: nothing was exported; the message says why.
    """
    exported = str(metadata.get("storage_uri") or "").strip()
    reason = str(metadata.get("no_export") or "")
    if exported or (model_uri.strip() and not reason):
        return exported or model_uri
    why = reason or "it has neither a storage_uri nor a URI, as where training exported nothing"
    raise InputError(
        f"There is no model to {purpose}: {why.rstrip('.')}. The training step before this one "
        f"writes what is served with script.export(model, …); {SCRIPT_GUIDE} shows it.",
        f"There is no model to {purpose}: {cut(why, _SHORT_REASON)}",
    )
