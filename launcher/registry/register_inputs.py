"""The inputs of `register_model`: their declaration and their checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers, servers, storage
from kfp_pytorch.launcher.inputs.declaration import declare, parse

KUBEFLOW_API = "/api/model_registry/v1alpha3"
MLFLOW_API = "/api/2.0/mlflow"
# Kubeflow's registry keeps 255 characters of a version's name with the model's id before it.
_LONGEST_NAME = 200
_VERSION = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+-]{{0,{_LONGEST_NAME - 1}}}")
# https://github.com/mlflow/mlflow/blob/v3.17.2/mlflow/utils/validation.py
_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,255}")
_RESERVED_ALIAS = re.compile(r"latest|v\d+", re.IGNORECASE)
_RUN = re.compile(r"[A-Za-z0-9][\w-]{0,255}", re.ASCII)
_LONGEST_KEY = 200
Property = str | float


def _model_name(name: str, value: Any) -> str:
    word = storage.without_placeholder(readers.text(name, value), name).strip()
    if not word:
        raise InputError(f"{name} is not set; give the name under which the model is registered.")
    if len(word) > _LONGEST_NAME or not word.isprintable():
        raise InputError(
            f"{name} is {word!r}; it may have {_LONGEST_NAME} characters, all of them printable."
        )
    return word


def _version(name: str, value: Any) -> str:
    word = storage.without_placeholder(readers.text(name, value), name)
    if word and not _VERSION.fullmatch(word):
        raise InputError(
            f"{name} is {word!r}; it may have {_LONGEST_NAME} letters, digits, '.', '_', '+' and "
            "'-', and begins with a letter or digit."
        )
    return word


def _server(api: str, name: str, value: Any) -> str:
    """Read the address of a registry without the path of its API, which people copy with it."""
    address = servers.optional_http_url(name, value).rstrip("/").removesuffix(api)
    if "?" in address or "#" in address:
        raise InputError(
            f"{name} is {address!r}; paths are added to it, so it has no '?' and no '#'. Give the "
            "server's address alone."
        )
    return address


def _tracking_uri(name: str, value: Any) -> str:
    word = readers.text(name, value).strip()
    if word and not word.startswith(("http://", "https://")) and "@" not in word:
        raise InputError(
            f"{name} is {word!r}; it must be the http:// or https:// address of an MLflow server. "
            "A folder, a database or 'databricks' has no REST API: start `mlflow server "
            "--backend-store-uri …` on it."
        )
    return _server(MLFLOW_API, name, word)


def _properties(name: str, value: Any) -> dict[str, Property]:
    found: dict[str, Property] = {}
    for key, item in readers.mapping(name, value).items():
        where = f"{name}[{key!r}]"
        if not key.strip() or not key.isprintable() or len(key) > _LONGEST_KEY:
            raise InputError(
                f"{name} has the key {key!r}; a key has 1 to {_LONGEST_KEY} printable characters."
            )
        is_number = isinstance(item, (int, float)) and not isinstance(item, bool)
        found[key] = readers.number(where, item) if is_number else readers.rendered(where, item)
    return found


def _aliases(name: str, value: Any) -> tuple[str, ...]:
    given = readers.strings(name, value)
    for word in given:
        if not _ALIAS.fullmatch(word) or _RESERVED_ALIAS.fullmatch(word):
            raise InputError(
                f"{name} has {word!r}; MLflow takes an alias of 255 letters, digits, '_' and '-', "
                "other than 'latest' and 'v' with a number."
            )
    return given


def _run(name: str, value: Any) -> str:
    word = storage.without_placeholder(readers.text(name, value), name)
    if word and not _RUN.fullmatch(word):
        raise InputError(f"{name} is {word!r}, which is no id of an MLflow run.")
    return word


def _text(name: str, value: Any) -> str:
    return storage.without_placeholder(readers.text(name, value), name)


@dataclass(frozen=True)
class RegisterInputs:
    """The checked inputs of `register_model`, the model not counted."""

    model_name: str = declare(_model_name, None)
    registry_url: str = declare(partial(_server, KUBEFLOW_API), "")
    mlflow_tracking_uri: str = declare(_tracking_uri, "")
    version: str = declare(_version, "")
    description: str = declare(_text, "")
    properties: dict[str, Property] = declare(_properties, {})
    run_name: str = declare(_text, "")
    mlflow_aliases: tuple[str, ...] = declare(_aliases, [])
    mlflow_run_id: str = declare(_run, "")
    registry_ui_url: str = declare(servers.optional_http_url, "")
    ca_file: str = declare(servers.mounted_file, "")
    timeout: int = declare(partial(readers.integer, minimum=1), 120)


def parse_register_inputs(**inputs: Any) -> RegisterInputs:
    """Check the inputs of `register_model`, the model not counted.

    Raises InputError: one cannot work, no registry is named, or the registry would refuse a name.
    """
    given = parse(RegisterInputs, "register_model", inputs)
    if not given.registry_url and not given.mlflow_tracking_uri:
        raise InputError(
            "Neither registry_url nor mlflow_tracking_uri is set, so there is nowhere to register "
            "the model. Give one or both, or leave the step out."
        )
    if given.mlflow_tracking_uri:
        _check_for_mlflow(given.model_name)
    elif given.mlflow_aliases or given.mlflow_run_id:
        raise InputError(
            "mlflow_aliases and mlflow_run_id are for MLflow, and mlflow_tracking_uri is not set."
        )
    return given


def _check_for_mlflow(model_name: str) -> None:
    """Refuse what MLflow refuses of a name, and what no filter of a search can hold."""
    if model_name in (".", "..") or {*"/:'\"`\\"} & set(model_name):
        raise InputError(
            f"model_name is {model_name!r}; MLflow takes no name with '/' or ':', finds none with "
            "a quotation mark or backslash, and takes neither '.' nor '..' alone."
        )
