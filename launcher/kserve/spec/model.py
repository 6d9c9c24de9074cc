"""What is served: where the model lies, its format, its name and the protocol it is asked by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kfp_pytorch.launcher import constants
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import model, storage
from kfp_pytorch.launcher.kserve.deploy_inputs import DeployInputs
from kfp_pytorch.launcher.kserve.names import HUGGING_FACE, TRITON, TRITON_RUNTIME, VLLM

# KServe's own entries of `storage-config`, of those that it reads.
_WITH_KEY = ("s3", "hdfs", "webhdfs")
_NOT_WITH_CONTAINER = {
    "model_format": "a container serves whatever it serves",
    "runtime": "the container is in place of one",
    "command": "write it into container",
    "args": "write them into container",
    "storage_key": "KServe gives a container's model the credentials of service_account only",
}
# Formats of Triton's repository, of which training exports one beside its own.
_IN_REPOSITORY = (TRITON, "onnx")


@dataclass(frozen=True)
class Source:
    """What a predictor serves."""

    uri: str  # where KServe reads the model; empty where the server has or fetches it itself
    format: str  # the modelFormat; empty where a container of one's own serves
    name: str  # the model's name at the server
    protocol: str  # v1, v2, grpc or openai

    @property
    def path(self) -> str:
        """The path below the service's URL at which it is asked; of openai, what clients take."""
        if self.protocol == "openai":
            return "/openai/v1" if self.format == HUGGING_FACE else "/v1"
        if self.protocol == "grpc":
            return ""
        v1 = self.protocol == "v1"
        return f"/v1/models/{self.name}:predict" if v1 else f"/v2/models/{self.name}/infer"


def source(given: DeployInputs, model_uri: str | None, metadata: Mapping[str, Any]) -> Source:
    """Return what is served.

    `model_uri`: the artifact's URI; None where there is no artifact. Raises InputError: there is
    not exactly one model, or an input does not go with another.
    """
    _check_container(given)
    uri = _uri(given, model_uri, metadata)
    model_format = "" if given.container else _format(given, metadata, uri)
    in_repository = str(metadata.get("triton") or "") if model_format in _IN_REPOSITORY else ""
    if in_repository:
        uri = f"{uri.rstrip('/')}/{constants.TRITON_FOLDER}"
    if given.storage_key and uri.partition("://")[0] not in _WITH_KEY:
        raise InputError(
            f"storage_key is {given.storage_key!r}, but the model is at {uri!r}: KServe reads the "
            f"Secret storage-config only for {', '.join(f'{s}://' for s in _WITH_KEY)}. Use a "
            "service_account."
        )
    if given.storage_parameters and not given.storage_key:
        raise InputError(
            "storage_parameters are given without storage_key, and KServe reads them only beside "
            "an entry of the Secret storage-config: name one."
        )
    name = _name(given, in_repository)
    return Source(uri, model_format, name, _protocol(given, model_format))


def _check_container(given: DeployInputs) -> None:
    if not given.container:
        return
    for name, why in _NOT_WITH_CONTAINER.items():
        if getattr(given, name):
            raise InputError(f"{name} is given together with container; {why}.")


def _uri(given: DeployInputs, model_uri: str | None, metadata: Mapping[str, Any]) -> str:
    if model_uri is not None and given.storage_uri:
        raise InputError(
            f"Both model and storage_uri, {given.storage_uri!r}, are given: leave one out."
        )
    model_id = option(given.args, "model_id") if given.model_format == HUGGING_FACE else ""
    if model_uri is None and not given.storage_uri:
        if given.container or model_id:
            return ""
        raise InputError(
            "There is no model to deploy: give model, storage_uri, a container that has its own, "
            f"or for model_format {HUGGING_FACE!r} --model_id in args."
        )
    if model_id:
        raise InputError(
            f"args has --model_id={model_id}, which the server fetches itself, and there is a "
            "model too: leave one out."
        )
    return given.storage_uri or storage.kserve_uri(model.place(model_uri or "", metadata, "deploy"))


def _format(given: DeployInputs, metadata: Mapping[str, Any], uri: str) -> str:
    known = str(metadata.get("format") or "")
    usual = HUGGING_FACE if uri.startswith("hf://") else constants.MODEL_FORMAT
    wanted = given.model_format or known or usual
    exported_for_triton = wanted in _IN_REPOSITORY and metadata.get("triton")
    if known and known != wanted and not exported_for_triton:
        raise InputError(
            f"model_format is {wanted!r}, but the model's own metadata says {known!r}. Leave "
            "model_format empty to serve it as what it is."
        )
    if wanted == "pytorch" and not given.runtime:
        raise InputError(
            "model_format 'pytorch' makes KServe take TorchServe, which serves only a .mar file in "
            "model-store/ with config/config.properties, not a checkpoint. If the model has that "
            "layout, name the runtime: runtime='kserve-torchserve'. A model that pytorch_job "
            f"exported has the format {constants.MODEL_FORMAT!r}."
        )
    return wanted


def option(args: Iterable[str], name: str) -> str:
    """Return the value of an option of a command line; empty where it is not there.

    `name`: with `_` between its words, for which `-` may stand, too.
    """
    words = [*args, ""]
    pattern = re.compile(f"--{re.escape(name).replace('_', '[-_]')}(=(.*))?", re.DOTALL)
    for word, following in pairwise(words):
        match = pattern.fullmatch(word)
        if match:
            return match[2] if match[1] else following
    return ""


def named_by_args(args: Iterable[str]) -> str:
    """Return the model's name that a server is given by its arguments; or an empty string."""
    args = [*args]
    return option(args, "model_name") or option(args, "served_model_name")


def _name(given: DeployInputs, in_repository: str) -> str:
    told = named_by_args(given.args or given.container.get("args", []))
    if told and given.model_name and told != given.model_name:
        raise InputError(
            f"model_name is {given.model_name!r}, but the server is told {told!r} by its "
            "arguments: leave one out."
        )
    if in_repository and given.model_name not in ("", in_repository):
        raise InputError(
            f"model_name is {given.model_name!r}, but the export for Triton calls the model "
            f"{in_repository!r}; leave it out."
        )
    return told or given.model_name or in_repository or given.service_name


def _protocol(given: DeployInputs, model_format: str) -> str:
    """Return the protocol that the predict URL is of; refuse one that the server does not have."""
    has: tuple[str, ...]
    if model_format == TRITON or given.runtime == TRITON_RUNTIME:
        server, has = "Triton", ("v2",)
    elif model_format == VLLM:
        server, has = "vLLM", ("openai",)
    elif model_format == constants.MODEL_FORMAT:
        server, has = "this project's predictor", ("v1", "v2", "grpc")
    else:
        return given.protocol or "v1"
    if given.protocol and given.protocol not in has:
        raise InputError(f"protocol is {given.protocol!r}; {server} has {', '.join(has)} only.")
    return given.protocol or has[0]
