"""Declares the inputs of a component: each input is one field of a frozen dataclass.

A component's signature, the table in its README and its checks all come from that dataclass;
`components/interfaces.yaml` describes the inputs; `components/generate.py` writes the component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs.readers import is_unset

T = TypeVar("T")

_KEY = "input"
_TYPES = {"list": "list[Any]", "dict": "dict[str, Any]"}


@dataclass(frozen=True)
class Input:
    """One input of a component.

    Attributes:
        read: Checks a value and gives it its type; takes the input's name, for messages, and the
            value.
        default: The value of an unset input; None where there is no default.
        type: Its type in the component's signature.
    """

    read: Callable[[str, Any], Any]
    default: Any
    type: str


def declare(read: Callable[[str, Any], Any], default: Any, type_name: str = "") -> Any:
    """Declare an input as a field of a dataclass; the type follows from the default, or is str."""
    kind = "str" if default is None else type(default).__name__
    type_name = type_name or _TYPES.get(kind, kind)
    return field(metadata={_KEY: Input(read, default, type_name)})


def inputs_of(declaration: type[Any]) -> dict[str, Input]:
    """Return the inputs that a dataclass declares, by name and in order.

    A field that is no input follows from inputs, and has a default.
    """
    declared = [item for item in fields(declaration) if _KEY in item.metadata]
    return {item.name: item.metadata[_KEY] for item in declared}


def parse(declaration: type[T], component: str, values: Mapping[str, Any]) -> T:
    """Read and check the inputs of a component, each by itself.

    Args:
        declaration: The dataclass that declares the inputs.
        component: The component's name, for messages.
        values: The values by name, as KFP passes them. '', 'None', 'null', [], {}, None and
            an absent input all count as unset and get the default.

    Returns:
        An instance of the dataclass.

    Raises:
        InputError: If an input is unknown or a value cannot work.
    """
    declared = inputs_of(declaration)
    unknown = sorted(set(values) - set(declared))
    if unknown:
        raise InputError(f"{component} has no input {unknown[0]!r}.")
    given = {name: value for name, value in values.items() if not is_unset(value)}
    read = {}
    for name, item in declared.items():
        try:
            read[name] = item.read(name, given.get(name, item.default))
        except RecursionError:
            raise InputError(f"{name} is nested too deep.") from None
    return declaration(**read)
