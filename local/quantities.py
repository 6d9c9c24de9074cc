"""Amounts of a resource, as Kubernetes writes them."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]+))?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def quantity(text: str | float) -> float:
    """Read an amount such as `500m`, `2Gi` or `1e3` in cores, bytes or pieces; or ValueError."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise ValueError(f"not an amount: {text!r}; write it as 500m, 2 or 4Gi")
    number, binary, decimal, exponent = match.groups()
    value = Decimal(number)
    if binary:
        return float(value * 1024 ** _BINARY[binary])
    return float(value.scaleb(_DECIMAL[decimal] if decimal else int(exponent or 0)))
