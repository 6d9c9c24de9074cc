"""Words for messages: counts, lists, lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

# A command in backticks or parentheses, which a person copies whole.
_COMMAND = re.compile(r"`[^`\n]*`|\(kubectl [^()\n]*\)")
_KEPT_SPACE = "\x00"


def counted(count: int, what: str) -> str:
    """Say how many: `1 restart`, `2 restarts`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def some(names: Iterable[str], most: int = 3) -> str:
    """Join names for a sentence: the first few, then a count."""
    listed = list(names)
    if len(listed) <= most + 1:
        return " and ".join(filter(None, (", ".join(listed[:-1]), *listed[-1:])))
    return f"{', '.join(listed[:most])} and {len(listed) - most} more"


def for_resume(folder: str, checkpoint: int | None = None) -> str:
    """Name a job's folder for another to resume from; `checkpoint`: its newest, where known."""
    known = "if it wrote a checkpoint"
    if checkpoint is not None:
        known = f"its newest checkpoint is of step {checkpoint}"
    return f"for resume_from: {folder} ({known})"


def cut(text: str, most: int) -> str:
    """Cut a text to so many characters; an ellipsis shows it."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def settled(text: str) -> str:
    """Return a program's output as a terminal shows it in the end.

    Only a line break ends a line; of one that was written over, as by a progress bar, the last
    state remains.
    """
    return "\n".join(_last_state(line) for line in text.split("\n"))


def _last_state(line: str) -> str:
    return next((state for state in reversed(line.split("\r")) if state.strip()), "")


def wrapped(message: str, width: int = 70, whole: int = 1) -> str:
    """Wrap a message for a log viewer that cuts long lines off.

    `message`: lines. `width`: the columns of a line. `whole`: how many lines at its beginning stay
    as they are; mostly the first, which is the cause. Commands, URIs and other long words are not
    broken apart.
    """
    given = message.split("\n")
    lines = given[:whole]
    for line in given[whole:]:
        indent = line[: len(line) - len(line.lstrip())]
        more = indent + ("  " if indent or line.startswith("- ") else "")
        kept = _COMMAND.sub(lambda match: match[0].replace(" ", _KEPT_SPACE), line.strip())
        parts = textwrap.wrap(
            kept,
            width,
            initial_indent=indent,
            subsequent_indent=more,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [part.replace(_KEPT_SPACE, " ") for part in parts] or [""]
    return "\n".join(lines)
