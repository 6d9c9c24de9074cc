"""Corrects the pod's environment before anything reads it."""

from __future__ import annotations

import re
from collections.abc import MutableMapping

# Tokens, access keys, addresses: none of them can end with a line break. Other passwords can.
_ONE_LINE = re.compile(
    r"^(?:AWS|MLFLOW)_|(?:^|_)(?:TOKEN|KEY|KEY_ID|REGION|BUCKET|ADDR|HOST|PORT|PROXY|URI|URL|ENDPOINT"
    r"|ENDPOINT_URL(?:_[A-Z0-9]+)?)$",
    re.IGNORECASE,
)


def remove_final_line_breaks(environ: MutableMapping[str, str]) -> None:
    """Remove the line break that a file put at the end of a Secret's or ConfigMap's value.

    `kubectl create secret --from-file` keeps it, and no header or URL can have it. A value of
    several lines, such as a PEM key, is left as it is.
    """
    for name, value in list(environ.items()):
        line = value.rstrip("\r\n")
        if line != value and _ONE_LINE.search(name) and "\n" not in line:
            environ[name] = line
