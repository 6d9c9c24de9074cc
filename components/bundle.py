"""The launcher and the components' functions as one file, in a ConfigMap.

`make compiled` writes the ConfigMap, `manifests/launcher.yaml`; `make wheels` packs the same
sources. The bytes depend on the sources alone: not on times, owners, the order of a folder, or
the Python that packs.
"""

from __future__ import annotations

import base64
import bz2
import functools
import hashlib
import json
import re
from pathlib import Path

import kfp_pytorch
from kfp_pytorch.components.stripping import without_types, without_words
from kfp_pytorch.launcher.constants import PREFIX
from kfp_pytorch.launcher.reference import KEY as KEY
from kfp_pytorch.launcher.reference import SHA256_ANNOTATION as SHA256_ANNOTATION
from kfp_pytorch.launcher.reference import Reference as Reference
from kfp_pytorch.launcher.reference import manifest_path as manifest_path
from kfp_pytorch.launcher.reference import reference as reference

_PACKAGE = "kfp_pytorch"
# Of urllib3, what only other platforms and other transports need.
_UNUSED = re.compile(r"urllib3/(contrib/(emscripten/|pyopenssl|socks)|http2/connection)")
# What the components' modules import when a step does.
_OF_COMPONENTS = ("__init__", "decorator", "scheduling", "source", "task_settings")


def sources() -> dict[str, Path]:
    """Returns the files that a step needs of this project, by their place in an archive."""
    package = Path(kfp_pytorch.__file__).parent
    components = package / "components"
    found = [
        package / "__init__.py",
        *(package / "launcher").resolve().rglob("*.py"),
        *(package / "launcher" / name for name in ("advice.toml", "outputs/page.css")),
        *(components / f"{name}.py" for name in _OF_COMPONENTS),
        *components.resolve().glob("*/*.py"),
    ]
    return {_inside(path): path for path in sorted(found)}


def archive() -> bytes:
    """Packs the sources and urllib3, without docstrings, comments and types.

    Their names and their texts, as JSON, which is smaller than a zip file, whose checksums cannot
    be compressed. bzip2 compresses it: zlib's output differs between its builds (zlib-ng, hardware
    deflate), while bzip2 has one encoder whose output has been the same since 1.0.
    """
    import urllib3

    root = Path(urllib3.__file__).parent
    libraries = {path.relative_to(root.parent).as_posix(): path for path in root.rglob("*.py")}
    used = {name: path for name, path in libraries.items() if not _UNUSED.match(name)}
    texts = {
        name: _packed(name, path.read_text(encoding="utf-8"))
        for name, path in sorted((sources() | used).items())
    }
    content = json.dumps([[*texts], [*texts.values()]], ensure_ascii=False)
    return bz2.compress(content.encode(), compresslevel=9)


@functools.cache
def _packed(name: str, text: str) -> str:
    """What the archive has of a file."""
    if not name.endswith(".py"):
        return text
    shorter = without_words(text)
    # KFP reads the annotations of components.
    return shorter if name.startswith(f"{_PACKAGE}/components/") else without_types(shorter)


def manifest() -> str:
    """The ConfigMap that holds the archive, as the text of `manifests/launcher.yaml`."""
    content = archive()
    wanted = Reference(kfp_pytorch.__version__, hashlib.sha256(content).hexdigest())
    return f"""\
# Made by `make compiled`. The launcher: a step of a compiled pipeline reads it when it starts.
# Pipelines of several versions run side by side, each with its own ConfigMap: neither delete nor
# prune one while pipelines that ask for it are in use (`kubectl apply --prune` would).
apiVersion: v1
kind: ConfigMap
metadata:
  name: {wanted.name}
  labels:
    app.kubernetes.io/name: {PREFIX}-launcher
  annotations:
    {SHA256_ANNOTATION}: {wanted.sha256}
    argocd.argoproj.io/sync-options: Prune=false
    kustomize.toolkit.fluxcd.io/prune: disabled
immutable: true
binaryData:
  {KEY}: {base64.b64encode(content).decode()}
"""


def write_manifest() -> None:
    """Writes the ConfigMap into `manifests/launcher.yaml`."""
    manifest_path().write_text(manifest(), encoding="utf-8")


def write_sources(folder: Path) -> None:
    """Writes what the wheel `kfp-pytorch-launcher` is built of."""
    project = Path(kfp_pytorch.__file__).parent / "launcher" / "pyproject.toml"
    for name, path in (sources() | {project.name: project}).items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())


def _inside(path: Path) -> str:
    """The place of a file in an archive; in an editable install the folders are links."""
    root = Path(kfp_pytorch.__file__).parent
    base = root.parent if path.is_relative_to(root) else root.resolve().parent
    inside = path.relative_to(base).as_posix()
    return inside if inside.startswith(f"{_PACKAGE}/") else f"{_PACKAGE}/{inside}"
