"""Label and field selectors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kfp_pytorch.local.apiserver import objects
from kfp_pytorch.local.apiserver.errors import Object, bad_request
from kfp_pytorch.local.apiserver.registry import Resource

Match = Callable[[Object], bool]

_WORD = r"[^\s=!,()<>]+"
_SET = rf"\(\s*(?:{_WORD})?(?:\s*,\s*(?:{_WORD})?)*\s*\)"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_WORD})|(?P<key>{_WORD})"
    rf"(?:\s*(?P<operator>==|!=|=|<|>)\s*(?P<value>{_WORD})?"
    rf"|\s+(?P<set>in|notin)\s*(?P<values>{_SET}))?)\s*"
)
_TOKEN = re.compile(r"==|!=|[=!,()<>]|[^\s=!,()<>]+")


@dataclass(frozen=True)
class _Requirement:
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: dict[str, str]) -> bool:
        value = labels.get(self.key)
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        if self.operator in ("!=", "notin"):
            return value not in self.values
        if self.operator in ("<", ">"):
            if not re.fullmatch(r"-?\d+", value or ""):
                return False
            number, limit = int(value or ""), int(self.values[0])
            return number > limit if self.operator == ">" else number < limit
        return value is not None and value in self.values


def selector(resource: Resource, labels: str, fields: str) -> Match:
    """A function that returns whether a label and a field selector select an object; empty for any.

    Raises ApiError: 400 when a selector cannot be read.
    """
    requirements = list(_label_requirements(labels))
    wanted = list(_field_requirements(resource, fields))

    def match(obj: Object) -> bool:
        found = objects.labels(obj)
        if not all(requirement.holds(found) for requirement in requirements):
            return False
        return all((_field(obj, path) == value) is equal for path, equal, value in wanted)

    return match


def _label_requirements(text: str) -> Iterator[_Requirement]:
    rest = text.strip()
    while rest:
        found = _REQUIREMENT.match(rest)
        if found is None:
            raise bad_request(f"unable to parse requirement: found '{rest}', expected: identifier")
        yield _requirement(found)
        rest = rest[found.end() :]
        if rest and rest[0] != ",":
            token = _TOKEN.match(rest)
            shown = token[0] if token else rest
            raise bad_request(f"found '{shown}', expected: ',' or 'end of string'")
        if rest == ",":
            raise bad_request("found '', expected: identifier after ','")
        rest = rest[1:]


def _requirement(found: re.Match[str]) -> _Requirement:
    if found["absent"]:
        return _Requirement(found["absent"], "!")
    if found["set"]:
        values = (value.strip() for value in found["values"][1:-1].split(","))
        return _Requirement(found["key"], found["set"], tuple(values))
    if not found["operator"]:
        return _Requirement(found["key"], "exists")
    value = found["value"] or ""
    if found["operator"] in ("<", ">") and not re.fullmatch(r"-?\d+", value):
        raise bad_request(
            f"for 'Gt', 'Lt' operators, the value must be an integer: found '{value}'"
        )
    return _Requirement(found["key"], found["operator"], (value,))


_EVERYWHERE = ("metadata.name", "metadata.namespace")


def _field_requirements(resource: Resource, text: str) -> Iterator[tuple[str, bool, str]]:
    for part in filter(None, (item.strip() for item in text.split(","))):
        found = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", part)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        path, operator, value = found.groups()
        if path not in (*_EVERYWHERE, *resource.selectable):
            raise bad_request(f"field label not supported: {path}")
        yield path, operator != "!=", value


def _field(obj: Object, path: str) -> str:
    if path == "source":
        return str((obj.get("source") or {}).get("component") or obj.get("reportingComponent", ""))
    value: object = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
