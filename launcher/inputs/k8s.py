"""Readers of inputs that Kubernetes restricts: names of objects, labels, quantities, images."""

from __future__ import annotations

import functools
import re
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.text import cut

_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(rf"(?=.{{1,63}}\Z){_PART}")
_DNS_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){_PART}(\.{_PART})*")
_KEY_NAME = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")
# https://github.com/distribution/reference/blob/v0.6.0/regexp.go
_HOST = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_PATH_PART = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(({_HOST}(\.{_HOST})*|\[[0-9a-fA-F:]+\])(:[0-9]+)?/)?"
    rf"(?P<path>{_PATH_PART}(/{_PATH_PART})*)(:\w[\w.-]{{0,127}})?"
    r"(@[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(
    r"(?P<number>\d+(\.\d*)?|\.\d+)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?",
    re.ASCII,
)
# Of all keys and values of an object together.
_ANNOTATIONS_BYTES = 256 * 1024
# Kubernetes takes more for this much.
_LARGEST = 2.0**63
_SCALES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3}
_SCALES |= {s: 1000.0 ** (i + 2) for i, s in enumerate("MGTPE")}
_SCALES |= {f"{s}i": 1024.0 ** (i + 1) for i, s in enumerate("KMGTPE")}


def image(name: str, value: Any) -> str:
    """Read the name of an image; unset gives an empty string."""
    word = readers.text(name, value)
    match = _IMAGE.fullmatch(word)
    if word and (match is None or len(match["path"]) > 255):
        raise InputError(
            f"{name} is {word!r}; write it as REGISTRY/NAME:TAG or REGISTRY/NAME@DIGEST: the name "
            "has lower case letters, digits and '-', '_', '.', '/' between them, at most 255, and "
            "there are no blanks."
        )
    return word


def quantity(name: str, value: Any, *, minimum: str) -> str:
    """Read a Kubernetes quantity, such as `500m` of a CPU or `4Gi` of memory, as it is written.

    `minimum`: the smallest amount that can be meant. Unset gives an empty string.
    """
    if readers.is_unset(value):
        return ""
    written = readers.rendered(name, value).strip()
    amount = quantity_value(written)
    if amount is None:
        raise InputError(
            f"{name} is {written!r}, which is no quantity. Write a number with m, k, M, G or T, "
            "or Ki, Mi, Gi or Ti, such as 500m or 4Gi."
        )
    if amount < (quantity_value(minimum) or 0):
        raise InputError(
            f"{name} is {written!r}, less than {minimum}. 'm' is a thousandth; for memory "
            "write Mi or Gi."
        )
    if amount > _LARGEST:
        raise InputError(f"{name} is {cut(repr(written), 40)}; the limit of Kubernetes is 2^63-1.")
    return written


cpu = functools.partial(quantity, minimum="1m")
memory = functools.partial(quantity, minimum="1Mi")


def quantity_value(written: str) -> float | None:
    """Return what a Kubernetes quantity amounts to, or None if it is none."""
    match = _QUANTITY.fullmatch(written)
    if match is None:
        return None
    suffix = match["suffix"] or ""
    if suffix[-1:].isdigit():
        return float(written)
    return float(match["number"]) * _SCALES[suffix]


def dns_label(name: str, value: Any) -> str:
    """Read a DNS-1123 label, such as a namespace; unset gives an empty string."""
    return _object_name(name, value, _DNS_LABEL, "63 lower case letters, digits and '-'")


def dns_subdomain(name: str, value: Any) -> str:
    """Read the name of an object such as a Secret or a ServiceAccount; unset gives ''."""
    rule = "253 lower case letters, digits, '-' and single '.'"
    return _object_name(name, value, _DNS_SUBDOMAIN, rule)


def _object_name(name: str, value: Any, pattern: re.Pattern[str], rule: str) -> str:
    word = readers.text(name, value)
    if word and not pattern.fullmatch(word):
        raise InputError(
            f"{name} is {word!r}; it must be at most {rule}, and begin and end with a letter or "
            "digit."
        )
    return word


def qualified_key(name: str, key: str) -> str:
    """Return a key that may be a label's or an annotation's: `name` or `prefix/name`."""
    prefix, slash, word = key.rpartition("/")
    if not _KEY_NAME.fullmatch(word) or (slash and not _DNS_SUBDOMAIN.fullmatch(prefix)):
        raise InputError(
            f"{name} has the key {key!r}; a key is at most 63 letters, digits, '-', '_' and '.', "
            "with an optional DNS prefix and '/' before it."
        )
    return key


def label_map(name: str, value: Any) -> dict[str, str]:
    """Read labels, their values rendered."""
    read = annotation_map(name, value)
    for key, item in read.items():
        label_value(f"{name}[{key!r}]", item, " An annotation takes any text.")
    return read


def label_value(name: str, value: str, advice: str = "") -> str:
    """Return a text that may be a label's value; the message about another ends with `advice`."""
    if not _LABEL_VALUE.fullmatch(value):
        raise InputError(
            f"{name} is {value!r}; a label's value is at most 63 letters, digits, '-', '_' and "
            f"'.', and begins and ends with a letter or digit.{advice}"
        )
    return value


def annotation_map(name: str, value: Any) -> dict[str, str]:
    """Read annotations, their values rendered."""
    read = {
        qualified_key(name, key): readers.rendered(f"{name}[{key!r}]", item)
        for key, item in readers.mapping(name, value).items()
    }
    size = sum(len(part.encode()) for item in read.items() for part in item)
    if size > _ANNOTATIONS_BYTES:
        raise InputError(
            f"{name} has {size:,} bytes; the limit of Kubernetes is {_ANNOTATIONS_BYTES:,}, of all "
            "together. Put what is larger into a ConfigMap."
        )
    return read
