"""The code of a job that its image does not have: files that travel in the package, or a folder.

`kfp_pytorch.components.source` makes the input of a file or a package. The files come into a
ConfigMap, which the pods mount.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers, storage
from kfp_pytorch.launcher.inputs.storage import Location

# Of the values of one ConfigMap together, in bytes: MaxSecretSize in
# https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/apis/core/types.go
LIMIT = 1 << 20
MOST_FILES = 1_000
_WAY_OUT = "Put the code on a claim and give source('pvc://CLAIM/path'), or build it into the image"


@dataclass(frozen=True)
class Source:
    """Code for the pods; false where there is none."""

    files: Mapping[str, bytes] = field(default_factory=dict)  # by path below the mount
    claim: Location | None = None  # a folder of a claim, in the place of files

    def __bool__(self) -> bool:
        """Whether there is any code."""
        return bool(self.files or self.claim)

    @property
    def digest(self) -> str:
        """A short digest of the files, the same for the same paths and bytes."""
        found = hashlib.sha256()
        for path, content in sorted(self.files.items()):
            found.update(f"{path}\0{len(content)}\0".encode() + content)
        return found.hexdigest()[:10]


def read(name: str, value: Any) -> Source:
    """Read the code: `{"uri": "pvc://…"}`, `{"files": {path: text}}` or `{"packed": base64}`.

    A file that is no text is `{"base64": "…"}`. Raises InputError: as `check`, and for a value of
    another form.
    """
    given = readers.mapping(name, value)
    if not given:
        return Source()
    if len(given) != 1 or next(iter(given)) not in ("uri", "files", "packed"):
        raise InputError(
            f"{name} has the keys {', '.join(given)}; make it with source('train.py') of "
            "kfp_pytorch.components."
        )
    if "uri" in given:
        return Source(claim=_claim(name, given["uri"]))
    files = readers.mapping(
        f"{name}.files", _unpacked(name, given["packed"]) if "packed" in given else given["files"]
    )
    found = {path: _content(f"{name}[{path!r}]", item) for path, item in files.items()}
    check(name, {path: len(content) for path, content in found.items()})
    return Source(files=found)


def check(name: str, sizes: Mapping[str, int]) -> None:
    """Refuse files of these sizes, in bytes, that no ConfigMap can hold, or no folder.

    Raises InputError: their paths cannot be, or they are too many or too large.
    """
    for path in sizes:
        if not path or storage.relative(f"a path of {name}", path) != path:
            raise InputError(
                f"{name} has a file at {path!r}; write a path such as 'package/module.py', with no "
                "slash at its ends."
            )
        parts = path.split("/")
        above = {"/".join(parts[:i]) for i in range(1, len(parts))} & sizes.keys()
        if above:
            raise InputError(f"{name} has {min(above)!r} as a file and as a folder; rename one.")
    if len(sizes) > MOST_FILES:
        raise InputError(f"{name} has more than {MOST_FILES:,} files, the limit. {_WAY_OUT}.")
    size = sum(sizes.values())
    if size > LIMIT:
        largest = max(sizes, key=lambda path: sizes[path])
        raise InputError(
            f"{name} has {size:,} bytes, {largest!r} alone {sizes[largest]:,}; a ConfigMap "
            f"holds at most {LIMIT:,}. {_WAY_OUT}."
        )


def as_json(content: bytes) -> Any:
    """Write a file as a text, or as base64 where KFP would not hand the text on as it is."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    # KFP takes what is between two braces for a placeholder of its own.
    if "{{" in text or not all(c.isprintable() or c in "\n\r\t" for c in text):
        return {"base64": base64.b64encode(content).decode()}
    return text


def _claim(name: str, value: Any) -> Location:
    location = storage.location(f"{name}.uri", value)
    if not location.on_claim:
        raise InputError(
            f"{name} is {location.uri!r}; pods mount code from a claim, pvc://CLAIM/path, and read "
            "none from a bucket. Copy it to a claim first, or build it into the image."
        )
    return location


def _unpacked(name: str, value: Any) -> Any:
    try:
        reader = bz2.BZ2Decompressor()
        # JSON takes six characters for one at most, and base64 four for three bytes.
        return json.loads(reader.decompress(base64.b64decode(value, validate=True), 8 * LIMIT))
    except (TypeError, ValueError, OSError, RecursionError) as error:
        raise InputError(
            f"{name} is damaged ({type(error).__name__}); make it anew with source(…)."
        ) from None


def _content(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InputError(f"{name} is no text that UTF-8 can hold.") from None
    if isinstance(value, Mapping) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InputError(f"{name} is not base64; make it anew with source(…).") from None
    raise InputError(f'{name} must be a text or {{"base64": "…"}}, not a {type(value).__name__}.')
