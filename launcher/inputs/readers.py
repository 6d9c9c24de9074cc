"""Readers of a component's inputs: each returns a checked value or raises an InputError.

KFP passes parameters as JSON, so a whole number inside a list or dict may arrive as a float,
and an unset optional input may arrive as `''`, `'None'`, `'null'`, `[]` or `{}`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import shell_syntax
from kfp_pytorch.launcher.text import cut

# Integers up to here are exact in JSON's numbers.
_EXACT = 2**53


def is_unset(value: Any) -> bool:
    """Return whether an input is unset: None, '', 'None', 'null', [] and {} alike."""
    if isinstance(value, str):
        return value.strip() in ("", "None", "null")
    return value is None or (isinstance(value, (Mapping, Sequence)) and not value)


def text(name: str, value: Any, default: str = "") -> str:
    """Read a string that a container can be given, as it is; a number is rendered.

    Unset gives the default.
    """
    if is_unset(value):
        return default
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError(f"{name} must be a string, not {value!r}.")
    return rendered(name, value)


def encodable(name: str, value: str) -> str:
    """Return the string if it can be an argument or a variable: no NUL, encodable as UTF-8."""
    if "\0" in value:
        raise InputError(f"{name} holds a NUL character, which no argument or variable can carry.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{name} holds half of a surrogate pair: {value!r}.") from None
    return value


def integer(name: str, value: Any, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
    """Read a whole number: 3.0 and '3' are 3, unset is 0."""
    if is_unset(value):
        return 0
    number = _whole(value)
    if number is None:
        raise InputError(f"{name} must be a whole number, not {cut(repr(value), 300)}.")
    if not minimum <= number <= maximum:
        told = cut(str(number), 40)
        raise InputError(f"{name} is {told}; it must be from {minimum} to {maximum}.")
    return number


def number(name: str, value: Any) -> float:
    """Read a finite number."""
    try:
        read = float(value if not isinstance(value, bool) else "")
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, not {value!r}.") from None
    if not math.isfinite(read):
        raise InputError(f"{name} is {read}; it must be a finite number.")
    return read


def share(name: str, value: Any) -> float:
    """Read a share, from 0 to 1."""
    read = number(name, value)
    if not 0 <= read <= 1:
        raise InputError(f"{name} is {read:g}; it must be a share, from 0 to 1.")
    return read


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+(\.0*)?\s*", value, re.ASCII):
        # Python reads no more than 4,300 digits.
        with contextlib.suppress(ValueError):
            return int(value.split(".")[0])
    return None


def boolean(name: str, value: Any) -> bool:
    """Read a truth value; 'true' and 'false' in any case are accepted too, unset is false."""
    if is_unset(value):
        return False
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise InputError(f"{name} must be true or false, not {value!r}.")
    return word == "true"


def choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Read one of a few words; the first is the default."""
    word = text(name, value, choices[0])
    if word not in choices:
        raise InputError(
            f"{name} is {word!r}; it must be one of {', '.join(c for c in choices if c)}."
        )
    return word


def one_of(*choices: str) -> Callable[[str, Any], str]:
    """Return a reader of one of a few words; the first is the default."""
    return functools.partial(choice, choices=choices)


def rendered(name: str, value: Any) -> str:
    """Write a scalar as a string, the same way every time.

    `value`: a string (kept byte for byte), a truth value ('true', 'false'), a whole number (3 and
    3.0 are '3') or another finite number (1e-05 is '1e-05').
    """
    if isinstance(value, str):
        return encodable(name, value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} is {value}, which is no finite number; write it as a string.")
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    if value is None:
        raise InputError(f"{name} is null. Leave it out, or give '' for an empty string.")
    raise InputError(f"{name} must be a string, a number or true/false, not {value!r}.")


def strings(name: str, value: Any) -> tuple[str, ...]:
    """Read a list of strings; numbers and truth values in it are rendered."""
    return tuple(rendered(f"{name}[{i}]", item) for i, item in enumerate(sequence(name, value)))


def sequence(name: str, value: Any) -> list[Any]:
    """Read a list, its whole floats made integers again; a word alone is a list of one."""
    if is_unset(value):
        return []
    if isinstance(value, str) and not value.startswith("["):
        if len(value.split()) > 1:
            raise InputError(
                f"{name} is the text {value!r}, which could be one item or several; write a list: "
                f"{value.split()!r} or {[value]!r}."
            )
        return [value]
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InputError(f'{name} must be a list, such as ["a", "b"], not {value!r}.')
    return [with_integers(item) for item in value]


def words(name: str, value: Any) -> list[Any]:
    """Read a command line: a list, or a text, which is split as a shell splits it."""
    if is_unset(value) or not isinstance(value, str) or value.startswith("["):
        return sequence(name, value)
    try:
        found = shlex.split(value.replace("\\\n", " "))
    except ValueError as error:
        raise InputError(f"{name} is {value!r}, which no shell could read: {error}.") from None
    first = found[0] if found else ""
    needed = shell_syntax.first_found(value) or (shell_syntax.is_command(first) and first)
    if needed:
        raise InputError(
            f"{name} is {value!r}; no shell runs it, which {needed!r} needs. Write "
            f'["sh", "-c", {json.dumps(value)}], for an image that has sh, or a list of the '
            "words, each of which stays as it is, as does what is in single quotation marks."
        )
    if shell_syntax.is_setting(first):
        raise InputError(
            f"{name} is {value!r}; no shell runs it, which {first!r} needs: put variables into env."
        )
    return found


def command(name: str, value: Any, otherwise: str = "") -> tuple[str, ...]:
    """Read a container's command, as a list or as one text.

    `otherwise`: what a person may do without one, for the message.
    """
    read = strings(name, words(name, value))
    if read and not read[0].strip():
        raise InputError(f"{name}[0] is {read[0]!r}, which names no program{otherwise}.")
    return read


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Read an object with string keys, its whole floats made integers again."""
    if is_unset(value):
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f'{name} must be an object, such as {{"key": "value"}}, not {value!r}.')
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"{name} has the key {key!r}; keys must be strings.")
    return {key: with_integers(item) for key, item in value.items()}


def with_integers(value: Any) -> Any:
    """Copy JSON with every float that is a whole number made an integer: KFP turns 20 to 20.0."""
    if isinstance(value, Mapping):
        return {key: with_integers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_integers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def objects(name: str, value: Any, fields: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Read a list of objects that may have these fields and no other."""
    return tuple(
        known_fields(f"{name}[{i}]", item, fields) for i, item in enumerate(sequence(name, value))
    )


def known_fields(name: str, value: Any, fields: Sequence[str]) -> dict[str, Any]:
    """Read an object that may have these fields and no other."""
    item = mapping(name, value)
    unknown = sorted(set(item) - set(fields))
    if unknown:
        raise InputError(
            f"{name} has the unknown field {unknown[0]!r}; it may have {', '.join(fields)}."
        )
    return item


def as_float(number: float) -> float:
    """Turn a number into a float; JSON's whole numbers have no end: one too large is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
