"""Rewrites a container's variables and arguments for a process of this machine.

Two of the four ways in which a process differs from its Pod object: paths under a mount become
folders, and names and ports of services become 127.0.0.1 and free ports.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kfp_pytorch.launcher import constants
from kfp_pytorch.local import loopback
from kfp_pytorch.local.processes import programs

Endpoint = Callable[[str, int | None], int | None]
"""Takes a host and a port, or None for the bare name of a host; gives the port on 127.0.0.1.

It gives 0 for the bare name of a service, and None for what is no service.
"""

# A host, a host and port, or a URL with either.
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)?(?P<host>[a-z0-9.-]+)(?::(?P<port>\d+))?")
_OPTION = re.compile(r"(?P<name>--?[A-Za-z][\w.-]*=)(?P<value>.*)", re.DOTALL)
# What ends a word for a shell, and so is in no word of a script but for a folder's name.
_SPECIAL = re.compile(r"[\s\"'`;|&()<>\\]")
# A path as a value in an object of JSON.
_PATH_IN_JSON = re.compile(r'(?<=": ")/[^"]*')

_LISTS_OF_PATHS = ("PATH", "PYTHONPATH")
# The variables that carry the port of the host in another variable.
_PORT_OF = {"MASTER_PORT": "MASTER_ADDR", "PET_MASTER_PORT": "PET_MASTER_ADDR"}


@dataclass(frozen=True)
class Rewriter:
    """Rewrites the values of one container."""

    mounts: Mapping[str, str]  # mount path → the folder or file in its place
    ports: Mapping[int, int]  # the container's declared ports → their free ports
    endpoint: Endpoint  # gives the ports of services

    def variables(self, values: Mapping[str, str]) -> dict[str, str]:
        """Rewrite the values of variables."""
        return {name: self._variable(name, value, values) for name, value in values.items()}

    def command(self, words: list[str]) -> list[str]:
        """Rewrite a command line, word by word, and so the script of a shell in it."""
        before, script = ["", *words], programs.script_at(words)
        rewritten = [
            self._word(word, previous) for word, previous in zip(words, before, strict=False)
        ]
        if script:
            rewritten[script] = self._script(words[script])
        return rewritten

    def path(self, text: str) -> str | None:
        """The local path of a path at or under a mount; None if it is not under one."""
        for mount in sorted(self.mounts, key=len, reverse=True):
            place = mount.rstrip("/")
            if text == place or text.startswith(f"{place}/"):
                return self.mounts[mount] + text[len(place) :]
        return None

    def _variable(self, name: str, value: str, values: Mapping[str, str]) -> str:
        if name in _PORT_OF and value.isdecimal():
            port = self.endpoint(values.get(_PORT_OF[name], ""), int(value))
            if port:
                return str(port)
        if name == constants.DATASETS_ENV:
            return _PATH_IN_JSON.sub(lambda match: self.path(match[0]) or match[0], value)
        if name in _LISTS_OF_PATHS:
            return os.pathsep.join(map(self._text, value.split(os.pathsep)))
        if programs.PORT_VARIABLE.fullmatch(name):
            return self._port(value)
        return self._text(value)

    def _word(self, word: str, previous: str) -> str:
        option = _OPTION.fullmatch(word)
        if option:
            is_port = programs.PORT_OPTION.fullmatch(option["name"])
            value = self._port(option["value"]) if is_port else self._text(option["value"])
            return option["name"] + value
        return self._port(word) if programs.PORT_OPTION.fullmatch(previous) else self._text(word)

    def _script(self, script: str) -> str:
        previous = ""

        def rewritten(match: re.Match[str]) -> str:
            nonlocal previous
            word, before = match[0], previous
            previous, new = word, self._word(word, before)
            quoted = script[: match.start()].endswith(("'", '"'))
            return new if quoted or new == word else _SPECIAL.sub(r"\\\g<0>", new)

        return programs.WORD.sub(rewritten, script)

    def _port(self, text: str) -> str:
        port = self.ports.get(int(text)) if text.isdecimal() else None
        return text if port is None else str(port)

    def _text(self, text: str) -> str:
        path, bound = self.path(text), programs.BOUND.fullmatch(text)
        if bound and int(bound[2]) in self.ports:
            return f"{bound[1]}:{self.ports[int(bound[2])]}"
        return self._address(text) if path is None else path

    def _address(self, text: str) -> str:
        address = _ADDRESS.match(text)
        if address is None or text[address.end() : address.end() + 1] not in ("", "/", "?"):
            return text
        given = address["port"]
        if not (given or address["scheme"]) and address.end() != len(text):
            return text  # a relative path
        default = {"http://": 80, "https://": 443}.get(address["scheme"] or "")
        port = self.endpoint(address["host"], int(given) if given else default)
        if port is None:
            return text
        scheme = address["scheme"] or ""
        host = loopback.HOST if scheme or port else loopback.ADDRESS
        there = f"{scheme}{host}" + (f":{port}" if port else "")
        return there + text[address.end() :]
