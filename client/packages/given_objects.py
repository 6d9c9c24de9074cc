"""The Secrets, ConfigMaps, claims and serving runtimes that a person gives to a local run.

No message here has a value: they are secret.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from kfp_pytorch.launcher.constants import CLAIM, CONFIG_MAP, SERVING_RUNTIME, Kind
from kfp_pytorch.local.apiserver.registry import CLUSTER_SERVING_RUNTIME, SECRET

Object = dict[str, Any]
SECRET_KINDS = (SECRET, CONFIG_MAP, CLAIM)
RUNTIME_KINDS = (SERVING_RUNTIME, CLUSTER_SERVING_RUNTIME)
_YAML = (".yaml", ".yml", ".json")


def read(paths: Iterable[Path], kinds: tuple[Kind, ...]) -> list[Object]:
    """Reads objects from files and folders; of two of one name the later one counts.

    A file is YAML of Kubernetes objects, or NAME.env, whose lines KEY=VALUE make the Secret NAME. A
    folder holds such files, or folders NAME with a file for each key, as a Secret is mounted.
    Raises click.ClickException: one cannot be read, has nothing, or is of no kind of `kinds`.
    """
    found: list[Object] = []
    for path in paths:
        made = [*_read(path, kinds)]
        if not made:
            folders = ", and no folder NAME with a file for each key" if path.is_dir() else ""
            raise _wrong(path, f"has no {', '.join(kind.kind for kind in kinds)}{folders}")
        found += made
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in found}
    return list(by_name.values())


def _read(path: Path, kinds: tuple[Kind, ...]) -> Iterator[Object]:
    if not path.exists():
        raise _wrong(path, "is not there")
    try:
        if path.is_dir():
            for each in sorted(path.iterdir()):
                if each.is_dir() and not each.name.startswith(".") and SECRET in kinds:
                    yield from _mounted(each)
                elif each.suffix in (*_YAML, ".env"):
                    yield from _read(each, kinds)
        elif path.suffix == ".env" and SECRET in kinds:
            yield _secret(path.stem, _variables(path))
        elif path.suffix in _YAML:
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8-sig")):
                yield from _objects(path, document, kinds)
        else:
            raise _wrong(path, "is neither a folder nor a file NAME.yaml, NAME.json or NAME.env")
    except yaml.MarkedYAMLError as error:
        # Its own words have the line in them.
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _wrong(path, f"is no YAML from line {line} on") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise _wrong(path, "is no text in UTF-8") from None
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror or error}") from None


def _objects(path: Path, document: Any, kinds: tuple[Kind, ...]) -> Iterator[Object]:
    if document is None:
        return
    kind = document.get("kind") if isinstance(document, dict) else None
    if isinstance(document, list) or str(kind).endswith("List"):
        for item in (document if isinstance(document, list) else document.get("items")) or []:
            yield from _objects(path, item, kinds)
        return
    known = [each.kind for each in kinds]
    if kind not in known:
        raise _wrong(path, f"has an object of kind {kind}; give {', '.join(known)}")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise _wrong(path, f"has a {kind} without metadata.name")
    # Of one that was read from a cluster, the rest says how it is there.
    kept = {name: metadata[name] for name in ("name", "labels", "annotations") if name in metadata}
    document = {**document, "metadata": kept}
    if kind == CLUSTER_SERVING_RUNTIME.kind:
        document["kind"] = SERVING_RUNTIME.kind
    yield _checked(path, document) if kind in (SECRET.kind, CONFIG_MAP.kind) else document


def _checked(path: Path, given: Object) -> Object:
    """A Secret or a ConfigMap whose values are texts; a Secret's are all in `data`."""
    encoded = "data" if given["kind"] == SECRET.kind else "binaryData"
    parts = {}
    for field in ("data", "stringData", "binaryData"):
        where = f"the {given['kind']} {given['metadata']['name']}"
        values = given.pop(field, None) or {}
        if not isinstance(values, dict):
            raise _wrong(path, f"has {where}, whose {field} is no mapping")
        for key, value in values.items():
            if not isinstance(value, str):
                why = "is no text; put it in quotation marks"
                raise _wrong(path, f"has {key!r} of {where}, which {why}")
            if field == encoded:
                values[key] = _decoded(path, f"{key!r} of {where}", value)
        parts[field] = values
    if given["kind"] == CONFIG_MAP.kind:
        return {**given, "data": parts["data"], "binaryData": parts["binaryData"]}
    texts = {key: _encoded(text.encode()) for key, text in parts["stringData"].items()}
    return {**given, "data": parts["data"] | texts}


def _decoded(path: Path, where: str, value: str) -> str:
    """A value in base64 without the line breaks that it may have."""
    try:
        return _encoded(base64.b64decode("".join(value.split()), validate=True))
    except (binascii.Error, ValueError):
        raise _wrong(path, f"has {where} not in base64; write it under stringData") from None


def _secret(name: str, data: dict[str, bytes]) -> Object:
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": name},
        "data": {key: _encoded(value) for key, value in data.items()},
    }


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _mounted(folder: Path) -> Iterator[Object]:
    """The Secret of a folder with a file for each key; none for a folder without files."""
    # A mounted Secret has folders that begin with `..`, and links into these.
    data = {
        each.name: each.read_bytes()
        for each in sorted(folder.iterdir())
        if each.is_file() and not each.name.startswith("..")
    }
    if data:
        yield _secret(folder.name, data)


def _variables(path: Path) -> dict[str, bytes]:
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise _wrong(path, f"has no KEY=VALUE in line {number}")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        found[key.strip()] = value.encode()
    return found


def _wrong(path: Path, why: str) -> click.ClickException:
    return click.ClickException(f"{path} {why}.")
