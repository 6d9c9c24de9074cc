"""The data sets of a job: artifacts of earlier steps, by name, and what its script gets of them.

KFP has no dict of artifacts. So a component has a few optional artifacts, `SLOTS`, and an input
with their names; its call fills both from a dict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers, storage
from kfp_pytorch.launcher.runtime.artifact import Artifact

SLOTS = ("dataset", "dataset_2", "dataset_3", "dataset_4")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}")
_REFERENCE = re.compile(r"\{dataset(?:\.([^{}\s]*))?\}")


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Attributes:
        uri: Where it is, as a URI, or as a path in the pods.
        metadata: The artifact's.
        claim: Its place, where that is on a claim, which the pods then mount at `mount`.
        mount: Where they mount it.
    """

    uri: str
    metadata: Mapping[str, Any]
    claim: storage.Location | None = None
    mount: str = ""


def names(name: str, value: Any) -> tuple[str, ...]:
    """Read the names of data sets."""
    given = readers.strings(name, value)
    for word in given:
        if not _NAME.fullmatch(word):
            raise InputError(
                f"A data set is called {word!r}; its name must be at most 63 letters, digits, '-' "
                "and '_', and not begin with '-'."
            )
    twice = sorted({word for word in given if given.count(word) > 1})
    if twice:
        raise InputError(f"Two data sets are called {twice[0]!r}; rename one.")
    return given


def by_name(artifacts: Mapping[str, Artifact | None], given: Sequence[str]) -> dict[str, DataSet]:
    """Return the data sets of a job, the first one first.

    `artifacts`: by slot; None for what an optional input of the pipeline did not get. `given`: the
    names of the slots, in their order; a slot without a name is called as the slot.
    """
    called = dict(zip(SLOTS, given, strict=False))
    return {
        called.get(slot, slot): _dataset(called.get(slot, slot), artifact)
        for slot in SLOTS
        if (artifact := artifacts.get(slot)) is not None
    }


def _metadata(artifact: Artifact) -> dict[str, Any]:
    """The metadata as its step wrote it, as far as ML Metadata keeps that.

    A list and a dict come back in a dict of their own:
    https://github.com/kubeflow/pipelines/blob/2.16.0/backend/src/v2/metadata/converter.go
    """
    found: dict[str, Any] = readers.with_integers(artifact.metadata)
    return {
        name: next(iter(value.values()))
        if isinstance(value, dict) and value.keys() <= {"struct", "list"} and len(value) == 1
        else value
        for name, value in found.items()
        if name not in constants.KFP_METADATA
    }


def _dataset(name: str, artifact: Artifact) -> DataSet:
    metadata = _metadata(artifact)
    if metadata.get("no_export"):
        raise InputError(
            f"The data set {name!r} is a model that was not exported: {metadata['no_export']}"
        )
    uri = str(metadata.get("storage_uri") or artifact.uri)
    if uri.partition("://")[0] == "pvc":
        claim = storage.parse(uri, f"The data set {name!r}")
        mount = f"{constants.DATASET_MOUNT}/{name}"
        return DataSet(claim.path_in_container(mount), metadata, claim, mount)
    return DataSet(storage.as_s3(uri), metadata)


def filled(name: str, text: str, datasets: Mapping[str, DataSet]) -> str:
    """Return a text with the URI of a data set for `{dataset}` and `{dataset.NAME}`.

    `name`: what the text is, for messages. Where there is no data set, the text stays as it is.
    """

    def uri(match: re.Match[str]) -> str:
        wanted = next(iter(datasets)) if match[1] is None else match[1]
        if wanted not in datasets:
            raise InputError(
                f"{name} has {match[0]}, and the job got no data set {wanted!r}. It got: "
                f"{', '.join(datasets)}."
            )
        return datasets[wanted].uri

    return _REFERENCE.sub(uri, text) if datasets else text


def variables(datasets: Mapping[str, DataSet]) -> dict[str, str]:
    """Return the variables that tell a script of its data sets; none where there are none."""
    if not datasets:
        return {}
    found = {name: {"uri": of.uri, "metadata": of.metadata} for name, of in datasets.items()}
    return {
        constants.DATASET_ENV: next(iter(datasets.values())).uri,
        constants.DATASETS_ENV: json.dumps(found, ensure_ascii=False),
    }
