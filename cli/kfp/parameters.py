"""The parameters of a run from a file and from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click


def arguments_of(given: Sequence[str], file: Path | None) -> dict[str, Any]:
    """The arguments of a file, with those of `-p` in their place.

    Raises click.ClickException: the file has none, or a text is no NAME=VALUE.
    """
    arguments = read(file) if file else {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.ClickException(f"-p {text!r}: write it as name=value.")
        arguments[name] = value
    return arguments


def read(file: Path) -> dict[str, Any]:
    """Reads a file of parameters: YAML or JSON, one mapping of names to values."""
    import yaml

    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        words = str(error).replace("\n", " ")
        raise click.ClickException(f"--parameters {file} cannot be read: {words}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise click.ClickException(
            f"--parameters {file}: it takes a mapping of names to values, such as `epochs: 3`."
        )
    return found
