"""What a command line as one text has that a shell alone acts on."""

from __future__ import annotations

import re

# In order: a placeholder of KFP, an escaped character, what is in quotation marks, and what a shell
# acts on: operators, variables, a home folder, a comment, a pattern of file names.
_PARTS = re.compile(
    r"""
    \{\{.*?\}\} | \\. | '[^']*' | "(?P<quoted>(?:\\.|[^"\\])*)"
    | (?P<found> \d*[<>|&;()]+ | ` | \$(?:\w+|[({?$!\#@*'"-]) | (?<!\S)[~\#] | [*?])
    """,
    re.DOTALL | re.VERBOSE,
)
# shlex leaves the backslash of an escaped dollar sign there, which a shell removes.
_IN_DOUBLE_QUOTES = re.compile(
    r"\{\{.*?\}\}|(?P<found>\\?`|\\\$|\$(?:\w+|[({?$!#@*-]))|\\.", re.DOTALL
)
_SETTING = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
# Commands of a shell that are no programs, or none that would do the same.
_COMMANDS = {
    *(".", ":", "alias", "case", "cd", "eval", "exec", "export", "for", "if", "popd", "pushd"),
    *("set", "shopt", "source", "trap", "ulimit", "umask", "unset", "until", "while"),
}


def first_found(text: str) -> str:
    """Returns the first operator or expansion outside of quotation marks; empty for none."""
    for part in _PARTS.finditer(text):
        within = _IN_DOUBLE_QUOTES.finditer(part["quoted"] or "")
        for each in (part, *within):
            if each["found"]:
                return each["found"]
    return ""


def is_command(word: str) -> bool:
    """Whether the first word of a command line is a command of the shell's own."""
    return word in _COMMANDS


def is_setting(word: str) -> bool:
    """Whether the first word of a command line sets a variable for the program after it."""
    return _SETTING.fullmatch(word) is not None
