"""Makes a short Python source shorter: what a Workflow keeps nine times of each step."""

from __future__ import annotations

import ast
import re
import string

_STRING = re.compile(r"('[^'\n]*')")
_EMPTY = re.compile(r"^ *(#.*)?\n", re.MULTILINE)
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
# In a string, a name begins a field of a format.
_FIELD = re.compile(r"(?<=\{)\w+")
_SPACE = re.compile(r"(?<=[^\w\s]) (?=\S)|(?<=\S) (?=[^\w\s]|$)|^ (?=\S)")
_COMPOUND = re.compile(r" *(def|while|for|if|elif|else|try|except|finally|with)\b")


def minimize(source: str) -> str:
    """Returns a source that does the same, the same text with every version of Python.

    No comments, one space of indentation, `;` between statements, and a letter for each name that
    the source binds in lower case. A line with an `@` begins a line.

    Args:
        source: Lines of at most one statement, strings in `'` without a `'` in them, no decorator,
            no local import.
    """
    letters = dict(zip(_own_names(ast.parse(source)), string.ascii_letters, strict=False))
    parts = _STRING.split(_EMPTY.sub("", source))
    for first, names in enumerate((_NAME, _FIELD)):
        parts[first::2] = [names.sub(lambda m: letters.get(m[0], m[0]), p) for p in parts[first::2]]
    parts[::2] = [_SPACE.sub("", part) for part in parts[::2]]
    lines: list[str] = []
    for line in "".join(parts).splitlines():
        words = line.lstrip()
        line = " " * ((len(line) - len(words)) // 4) + words
        pair = (lines[-1], line) if lines else ("if", line)
        joins = "@" not in line and not any(map(_COMPOUND.match, pair))
        if joins and len({len(one) - len(one.lstrip()) for one in pair}) == 1:
            lines[-1] += f";{words}"
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _own_names(tree: ast.Module) -> list[str]:
    """The names that a program binds in lower case, and that are no keywords of its calls."""
    found: set[str | None] = set()
    taken: set[str | None] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.alias(asname=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ExceptHandler(name=name):
                found.add(name)
            case ast.keyword(arg=name):
                taken.add(name)
    return sorted(name for name in found - taken if name and name.islower())
