"""Where logs go: to a person line by line, or to a program as one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import click


class Output(Protocol):
    """Takes what is shown of a run."""

    def tell(self, text: str) -> None:
        """Says something about what is shown."""

    def begin(self, text: str, **about: object) -> None:
        """A log follows. `text`: what a person is told of it; `about`: the same for a program."""

    def lines(self, lines: Iterable[str], *, follow: bool) -> bool:
        """Takes the lines of the log that was begun; returns whether there were any."""


class Printed:
    """For a person: logs on stdout, what is said of them on stderr."""

    def tell(self, text: str) -> None:
        """Prints it, after what was printed before where both go to one place."""
        sys.stdout.flush()
        click.echo(text, err=True)

    def begin(self, text: str, **about: object) -> None:  # noqa: ARG002 (for a program)
        """Says which log follows."""
        if text:
            self.tell(text)

    def lines(self, lines: Iterable[str], *, follow: bool) -> bool:
        """Prints them, of a log that goes on each at once."""
        some = False
        for line in lines:
            some = True
            sys.stdout.write(f"{line}\n")
            if follow:
                sys.stdout.flush()
        sys.stdout.flush()
        return some


class Collected:
    """For a program: logs are kept for one object at the end; a person reads the rest on stderr."""

    def __init__(self) -> None:
        self._logs: list[dict[str, Any]] = []

    def tell(self, text: str) -> None:
        """Prints it on stderr."""
        click.echo(text, err=True)

    def begin(self, text: str, **about: object) -> None:  # noqa: ARG002 (for a person)
        """Begins a log of the object."""
        self._logs.append({**about, "lines": []})

    def lines(self, lines: Iterable[str], *, follow: bool) -> bool:
        """Keeps them; those of a log that goes on are on stderr, too."""
        kept = self._logs[-1]["lines"]
        kept.extend(self._told(lines) if follow else lines)
        return bool(kept)

    def _told(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            click.echo(line, err=True)
            yield line

    def print(self, **about: object) -> None:
        """Prints the object."""
        click.echo(json.dumps({**about, "logs": self._logs}))
