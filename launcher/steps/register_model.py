"""The step `register_model`: a Model becomes a version in registries of models."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kfp_pytorch.launcher.errors import InputError, StepError
from kfp_pytorch.launcher.registry import kubeflow, mlflow
from kfp_pytorch.launcher.registry.http import Api, RegistryError, Server
from kfp_pytorch.launcher.registry.record import Record, record
from kfp_pytorch.launcher.registry.register_inputs import (
    KUBEFLOW_API,
    MLFLOW_API,
    RegisterInputs,
    parse_register_inputs,
)
from kfp_pytorch.launcher.runtime.artifact import Artifact, write
from kfp_pytorch.launcher.runtime.printing import log

TOKEN_ENV = "MODEL_REGISTRY_TOKEN"  # noqa: S105 - a name, not a secret
# MLflow's own names.
MLFLOW_TOKEN_ENV = "MLFLOW_TRACKING_TOKEN"  # noqa: S105
MLFLOW_USER_ENV, MLFLOW_PASSWORD_ENV = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
SECRETS = (TOKEN_ENV, MLFLOW_TOKEN_ENV, MLFLOW_USER_ENV, MLFLOW_PASSWORD_ENV)
# Of a Model's content; one that somebody imported may be of any size.
_LARGEST = 1 << 20


class Outputs(NamedTuple):
    """The output parameters; those of a registry that was not asked for are empty."""

    version: str
    registered_model_id: str
    model_version_id: str
    url: str
    mlflow_version: str
    mlflow_url: str


def run(model: Artifact, registered: Artifact, **inputs: Any) -> Outputs:
    """Registers a model.

    `model`: the model; its metadata says where it lies and how it was made. Raises InputError: an
    input cannot work, or the version is another model's. Raises RegistryError: a registry refused a
    request, or did not answer for too long.
    """
    given = parse_register_inputs(**inputs)
    what = checked_record(given, model.uri, model.metadata, _described(model), registered.uri)
    log(f"registering {what.uri} as version {what.version!r} of {what.name!r}")
    # Before anything is asked: a certificate that cannot be read is a mistake in the inputs.
    apis = {server.title: Api(server) for server in _servers(given, os.environ)}
    outputs = Outputs(what.version, "", "", "", "", "")
    if given.registry_url:
        outputs = _in_kubeflow(apis["Model Registry"], given, what, outputs)
    if given.mlflow_tracking_uri:
        try:
            outputs = _in_mlflow(apis["MLflow"], given, what, outputs)
        except StepError as error:
            raise _after(outputs, error) from error
    about = _about(given, what, outputs)
    registered.metadata.update(about)
    write(registered, json.dumps(about, ensure_ascii=False, indent=2))
    return outputs


def checked_record(
    inputs: RegisterInputs,
    model_uri: str,
    metadata: Mapping[str, Any],
    described: Mapping[str, Any],
    step_uri: str,
) -> Record:
    """Gathers what is registered, as `record`, and refuses what a registry would refuse of it."""
    what = record(inputs, model_uri, metadata, described, step_uri)
    if inputs.mlflow_tracking_uri:
        mlflow.check_source(what.uri)
    return what


def _in_kubeflow(api: Api, given: RegisterInputs, what: Record, outputs: Outputs) -> Outputs:
    found = kubeflow.register(api, what)
    url = found.url
    if given.registry_ui_url:
        page = f"registered-models/{found.model_id}/versions/{found.version_id}"
        url = f"{given.registry_ui_url.rstrip('/')}/{page}"
    log(f"Model Registry: version {what.version!r} has id {found.version_id}: {url}")
    return outputs._replace(
        registered_model_id=found.model_id, model_version_id=found.version_id, url=url
    )


def _in_mlflow(api: Api, given: RegisterInputs, what: Record, outputs: Outputs) -> Outputs:
    found = mlflow.register(api, what, given.mlflow_run_id, given.mlflow_aliases)
    log(f"MLflow: version {what.version!r} has number {found.version}: {found.url}")
    return outputs._replace(mlflow_version=found.version, mlflow_url=found.url)


def _after(outputs: Outputs, error: StepError) -> StepError:
    """An error of MLflow, with what is registered already."""
    if not outputs.model_version_id:
        return error
    kind = InputError if isinstance(error, InputError) else RegistryError
    return kind(
        f"{error.message}\nThe Model Registry has the model already, as version "
        f"{outputs.model_version_id}; the next attempt of this step finds it there."
    )


def _about(given: RegisterInputs, what: Record, outputs: Outputs) -> dict[str, str]:
    known = {
        "model_name": what.name,
        "storage_uri": what.uri,
        "sha256": what.sha256,
        "registry_url": given.registry_url,
        "mlflow_tracking_uri": given.mlflow_tracking_uri,
        **outputs._asdict(),
    }
    return {name: value for name, value in known.items() if value}


def _servers(given: RegisterInputs, environ: Mapping[str, str]) -> list[Server]:
    servers = []
    if given.registry_url:
        token = _secret(environ, TOKEN_ENV)
        servers.append(
            Server(
                "Model Registry",
                f"{given.registry_url}{KUBEFLOW_API}",
                f"Bearer {token}" if token else "",
                (token,) if token else (),
                given.ca_file,
                given.timeout,
            )
        )
    if given.mlflow_tracking_uri:
        authorization, secrets = _mlflow_credentials(environ)
        url = f"{given.mlflow_tracking_uri}{MLFLOW_API}"
        servers.append(Server("MLflow", url, authorization, secrets, given.ca_file, given.timeout))
    return servers


def _mlflow_credentials(environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The header and what no message may show, by MLflow's own variables."""
    user, password = _secret(environ, MLFLOW_USER_ENV), environ.get(MLFLOW_PASSWORD_ENV, "")
    token = _secret(environ, MLFLOW_TOKEN_ENV)
    if user and password:
        # A password that was read from a file ends with a line break.
        password = password.rstrip("\r\n")
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        return f"Basic {encoded}", (encoded, password)
    return (f"Bearer {token}", (token,)) if token else ("", ())


def _secret(environ: Mapping[str, str], name: str) -> str:
    """A variable that goes into a header; a file's content ends with a line break."""
    value = environ.get(name, "").strip()
    if not (value.isascii() and value.isprintable()):
        raise InputError(
            f"The environment variable {name} is not one line of ASCII text, as a header's value "
            "must be: look at the entry of the Secret that it comes from."
        )
    return value


def _described(model: Artifact) -> Mapping[str, Any]:
    """The short form of `model.json` in the Model's content; empty where that is another."""
    path = Path(model.path)
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return {}
        described = json.loads(path.read_bytes())["model"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    return described if isinstance(described, Mapping) else {}
