"""The interface of each component, read from `interfaces.yaml` beside this module."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kfp_pytorch.launcher.inputs.declaration import inputs_of

Typed = Mapping[str, tuple[str, str]]  # type and description of each artifact or output


@dataclass(frozen=True)
class Interface:
    """The interface of a component."""

    name: str  # of the component, its step and its folder
    summary: str  # what it does, in one line
    details: str  # what a user must know besides
    declaration: type[Any]  # the dataclass that declares its inputs
    inputs: Mapping[str, str]  # the description of each input
    input_artifacts: Typed
    optional_artifacts: frozenset[str]  # those of the input artifacts that may be left out
    output_artifacts: Typed
    outputs: Typed


def _interface(name: str, written: dict[str, Any]) -> Interface:
    parts = {
        part: {key: (of["type"], of["doc"]) for key, of in written.get(part, {}).items()}
        for part in ("input_artifacts", "output_artifacts", "outputs")
    }
    declaration = pkgutil.resolve_name(f"kfp_pytorch.{written['declaration']}")
    optional = frozenset(
        key for key, of in written.get("input_artifacts", {}).items() if of.get("optional")
    )
    described: dict[str, str] = {}
    for group in written.get("shared_inputs", []):
        described |= _SHARED[group]
    described, declared = {**described, **written["inputs"]}, list(inputs_of(declaration))
    if {*declared} - {*described} or {*written["inputs"]} - {*declared}:
        raise ValueError(f"{name} describes the inputs {list(described)}, and declares {declared}.")
    return Interface(
        name=name,
        summary=written["summary"],
        details=written["details"],
        declaration=declaration,
        inputs={each: described[each] for each in declared},
        optional_artifacts=optional,
        **parts,
    )


_WRITTEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_SHARED: dict[str, dict[str, str]] = _WRITTEN.pop("shared_inputs")
INTERFACES = tuple(_interface(name, written) for name, written in _WRITTEN.items())
