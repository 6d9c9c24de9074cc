"""What is registered of a model, from what KFP hands over of it. No I/O."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import model, storage
from kfp_pytorch.launcher.registry.register_inputs import Property, RegisterInputs
from kfp_pytorch.launcher.text import cut

# In the URI of an artifact of a pipeline, below its root:
# https://github.com/kubeflow/pipelines/blob/2.16.0/backend/src/v2/metadata/client.go (GetPipeline)
_OF_A_RUN = re.compile(
    r"/(?P<pipeline>[^/]+)/(?P<run_id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/(?P<task>[^/]+)/"
)
_LONGEST_TEXT = 4_000
_READABLE = 60


@dataclass(frozen=True)
class Record:
    """A version of a model, whatever the registry.

    Attributes:
        version: Its name: the one that was given, or one that follows from the model.
        uri: Where the model lies.
        sha256: Of the export's `model.json`; empty where it is not known.
        properties: What the version says of its making: texts and finite numbers, by name.
        first: What it says of the run that registered it first, by name.
        own: Further properties, which the author of the pipeline gave.
    """

    name: str
    version: str
    uri: str
    sha256: str
    format: str
    description: str
    properties: Mapping[str, Property]
    first: Mapping[str, Property]
    own: Mapping[str, Property]

    def text(self, name: str) -> str:
        """What is known by a name, as a text; empty where it is not known."""
        return str(self.properties.get(name, self.first.get(name, "")))

    def is_another(self, uri: str, sha256: str) -> bool:
        """Whether what is known of a version, each empty if it is not, is of another model."""
        differs = bool(uri and uri != self.uri)
        return differs or bool(sha256 and self.sha256 and sha256 != self.sha256)


def record(
    inputs: RegisterInputs,
    model_uri: str,
    metadata: Mapping[str, Any],
    described: Mapping[str, Any],
    step_uri: str,
) -> Record:
    """Gather what is registered.

    `model_uri`, `metadata`: of the Model. `described`: the short form of `model.json`; empty where
    the model has none. `step_uri`: of an artifact of this step. Raises InputError: nothing was
    exported, or the model lies on a machine.
    """
    uri = _uri(model.place(model_uri, metadata, "register"))
    known = {key: value for key, value in map(_flat, metadata.items()) if value != ""}
    sha256 = str(known.get("sha256", ""))
    made_by = _run_of(model_uri) | known
    first = {} if "run_id" in made_by else _run_of(step_uri)
    first |= {"run_name": inputs.run_name} if inputs.run_name else {}
    return Record(
        name=inputs.model_name,
        version=inputs.version or _version(uri, sha256, str(known.get("job", ""))),
        uri=uri,
        sha256=sha256,
        format=str(known.get("format", "")),
        description=inputs.description,
        properties=made_by | _versions(described) | {"storage_uri": uri},
        first=first,
        own=inputs.properties,
    )


def _run_of(artifact_uri: str) -> dict[str, Property]:
    """The run, pipeline and task of an artifact; empty where it is of none, or of a local run."""
    found = _OF_A_RUN.search(artifact_uri)
    return dict(found.groupdict()) if found else {}


def _uri(place: str) -> str:
    """A model's place as a URI that is the same for everybody."""
    scheme, mark, rest = place.strip().partition("://")
    if not mark or not rest.strip("/") or scheme == "file":
        raise InputError(
            f"The model lies at {place!r}, a path on one machine, where nobody who reads the "
            "registry finds it: keep it on a claim or in a bucket."
        )
    return storage.as_s3(place.strip())


def _version(uri: str, sha256: str, job: str) -> str:
    """Name a version by its job and by what makes it this model: its place and its content."""
    digest = hashlib.sha256(f"{uri}\n{sha256}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9.-]+", "-", job)[:_READABLE].strip("-.") or "model"
    return f"{readable}-{digest}"


def _flat(item: tuple[str, Any]) -> tuple[str, Property]:
    """An entry of an artifact's metadata; empty where it is none that a registry keeps."""
    name, value = item
    if name in constants.KFP_METADATA or not name.isprintable() or isinstance(value, bool):
        return name, ""
    if isinstance(value, (int, float)):
        return name, float(value) if math.isfinite(value) else ""
    return name, cut(value, _LONGEST_TEXT) if isinstance(value, str) else ""


def _versions(described: Mapping[str, Any]) -> dict[str, Property]:
    versions = described.get("versions")
    if not isinstance(versions, Mapping):
        return {}
    return {
        f"version_{name}": version
        for name, version in versions.items()
        if isinstance(version, str) and version.isprintable()
    }


def format_version(record: Record) -> str:
    """The version of the model's format; empty where it is not known."""
    return str(constants.MODEL_VERSION) if record.format == constants.MODEL_FORMAT else ""
