"""Storage locations: the URIs of a job's folder, in the form that each program reads.

A location is `pvc://CLAIM/sub/path`, or `s3://`, `gs://` or `minio://` with a bucket and a prefix.
`minio://` is how KFP writes an S3 bucket whose endpoint its settings know; everything else that
reads files calls that `s3://`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from kfp_pytorch.launcher.constants import BUCKET_PATTERNS
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import k8s, readers, servers

SCHEMES = ("pvc", "s3", "gs", "minio")
# What KServe takes, `SupportedStorageURIPrefixList` in
# https://github.com/kserve/kserve/blob/v0.20.0/pkg/controller/v1beta1/inferenceservice/utils/utils.go
_KSERVE_SCHEMES = (
    *("pvc", "s3", "gs", "hf", "oci", "oci+native"),
    *("http", "https", "hdfs", "webhdfs", "file"),
)
# `_download_hf` of KServe's storage initializer takes no other.
_HUGGING_FACE = re.compile(r"[^/\s:]+/[^/\s:]+(:[^/\s]+)?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")

# What file systems take for one name.
_PART_BYTES = 255


@dataclass(frozen=True)
class Location:
    """A folder on a claim or in a bucket."""

    scheme: str  # `pvc`, `s3` or `gs`
    host: str  # the claim's or the bucket's name
    path: str = ""  # the folder in it, with no slash at either end; empty for the root

    @property
    def uri(self) -> str:
        """The location as a URI, with no slash at its end."""
        return f"{self.scheme}://{self.host}/{self.path}".rstrip("/")

    @property
    def on_claim(self) -> bool:
        """Whether it lies on a PersistentVolumeClaim."""
        return self.scheme == "pvc"

    def under(self, *parts: str) -> Location:
        """Return a folder below this one; empty parts add nothing."""
        return replace(self, path="/".join(part for part in (self.path, *parts) if part))

    def path_in_container(self, mount: str) -> str:
        """Return the path or URI of this folder in a container.

        Returns a path below the mount for a claim, an fsspec URI otherwise.
        """
        return str(PurePosixPath(mount, self.path)) if self.on_claim else self.uri


def parse(uri: str, name: str = "output_uri") -> Location:
    """Read a location, such as `pvc://claim/sub/path` or `s3://bucket/prefix`.

    `minio` becomes `s3`.
    """
    scheme, mark, rest = uri.partition("://")
    if not mark or scheme not in SCHEMES:
        raise InputError(
            f"{name} is {uri!r}; it must begin with pvc://CLAIM, s3://BUCKET, gs://BUCKET or "
            "minio://BUCKET. A path on a node is not seen by the job's pods."
        )
    check_no_password(uri, name)
    host, _, path = rest.partition("/")
    if scheme == "pvc":
        if not k8s.dns_subdomain(f"the claim in {name}", host):
            raise InputError(f"{name} is {uri!r} and names no claim; write pvc://CLAIM/sub/path.")
        return Location("pvc", host, relative(name, path))
    if not _BUCKET.fullmatch(host):
        raise InputError(
            f"{name} is {uri!r}; {host!r} is no bucket: 3 to 222 lower case letters, digits, "
            "'-', '_' and '.'."
        )
    if BUCKET_PATTERNS & set(path):
        raise InputError(
            f"{name} is {uri!r}; '*', '?' and '[' are patterns to the clients of buckets, which "
            "would delete what others wrote: give a path without them."
        )
    return Location("s3" if scheme == "minio" else scheme, host, relative(name, path))


def check_no_password(uri: str, name: str) -> None:
    """Refuse a URI with credentials, such as `s3://KEY:SECRET@bucket`, without telling them."""
    if "@" in uri.partition("://")[2].partition("/")[0]:
        raise InputError(
            f"{name} has credentials before '@', which all who see the job could read; write it "
            "without them, and put them into a Secret."
        )


def location(name: str, value: Any) -> Location:
    """Read the input `name` as a location; see `parse`."""
    return parse(readers.text(name, value), name)


def optional_location(name: str, value: Any) -> Location | None:
    """Read the input `name` as a location, or None where it is unset."""
    return None if readers.is_unset(value) else location(name, value)


def relative(name: str, value: Any) -> str:
    """Read a path below a root, with no empty parts.

    No part may be `.` or `..`, begin or end with a blank, hold a control character or be too long
    for a folder.
    """
    path = without_placeholder(readers.text(name, value), name)
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part in (".", "..") or part != part.strip() or not part.isprintable() or "\\" in part:
            raise InputError(
                f"{name} has the path {path!r}; {part!r} cannot be a folder's name here: no '.', "
                "'..', backslash or control character, and no blank at its ends."
            )
        if len(part.encode()) > _PART_BYTES:
            raise InputError(
                f"{name} has the path {path[:40]!r}…; a folder's name has at most {_PART_BYTES} "
                f"bytes, and this one has {len(part.encode())}."
            )
    return "/".join(parts)


def without_placeholder(text: str, name: str) -> str:
    """Return a text that names something; refuse a placeholder that nothing filled in."""
    if "{{" in text:
        raise InputError(
            f"{name} holds {text!r}, a placeholder that nothing filled in. KFP fills placeholders "
            "in only where they are the whole value of a task's argument in the pipeline."
        )
    return text


def as_s3(uri: str) -> str:
    """Return a URI as others than KFP write it: `minio` becomes `s3`."""
    return f"s3://{uri.removeprefix('minio://')}" if uri.startswith("minio://") else uri


def kserve_uri(uri: str) -> str:
    """Return a model's URI as KServe reads it; `minio` becomes `s3`.

    `uri`: a model's location, such as KFP's `minio://bucket/key`.
    """
    uri = uri.strip()
    scheme, mark, rest = uri.partition("://")
    names_no_place = not rest or (scheme in SCHEMES and rest.startswith("/"))
    if not mark or scheme not in (*_KSERVE_SCHEMES, "minio") or names_no_place:
        raise InputError(
            f"KServe cannot read the model at {uri!r}; it reads "
            f"{', '.join(f'{known}://' for known in _KSERVE_SCHEMES)}. A path on this machine "
            "is not seen by the predictor's pod: keep the model on a claim or in a bucket."
        )
    if scheme == "hf" and not _HUGGING_FACE.fullmatch(rest):
        raise InputError(
            f"The model is at {uri!r}; KServe reads hf://OWNER/MODEL or hf://OWNER/MODEL:REVISION."
        )
    if scheme in ("http", "https"):
        servers.http_url("the model's place", uri)
    return as_s3(uri)
