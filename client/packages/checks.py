"""Finds inputs that cannot work before anything runs.

The checks are the launcher's own, on what is known of a task's inputs beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click

from kfp_pytorch.client.packages import pods, services
from kfp_pytorch.client.packages.find import Package
from kfp_pytorch.client.packages.known_tasks import IMPORTER, KnownTask, known_tasks, left_literal
from kfp_pytorch.client.packages.loops import loop_problems
from kfp_pytorch.launcher.constants import INFERENCE_SERVICE
from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.inputs.declaration import parse
from kfp_pytorch.launcher.inputs.environment import SIZE_LIMIT
from kfp_pytorch.launcher.jobs.kind import JobInputs, JobKind
from kfp_pytorch.launcher.jobs.registry import STEPS, kind_of
from kfp_pytorch.launcher.kserve import manifest as service_manifest
from kfp_pytorch.launcher.kserve.canary import check_inputs
from kfp_pytorch.launcher.kserve.canary.inputs import PROMOTE, RolloutInputs
from kfp_pytorch.launcher.kserve.predict import cases
from kfp_pytorch.launcher.kserve.predict.clients.grpc import check_headers
from kfp_pytorch.launcher.kserve.predict.forms import read_requests
from kfp_pytorch.launcher.kserve.predict.inputs import parse_inputs as parse_predict_inputs
from kfp_pytorch.launcher.kserve.predict.target import resolve
from kfp_pytorch.launcher.readiness.needs import parse_needs
from kfp_pytorch.launcher.registry.register_inputs import parse_register_inputs
from kfp_pytorch.launcher.runtime import identity
from kfp_pytorch.launcher.steps import compare_jobs, metric_gate, register_model
from kfp_pytorch.launcher.steps.tensorboard import View
from kfp_pytorch.local.kfp import placeholders


def check(package: Package, arguments: dict[str, Any] | None = None) -> None:
    """Checks the constants, defaults and arguments that reach this project's components.

    Raises click.ClickException: inputs cannot work; each one is named with its task.
    """
    found = list(loop_problems(package, arguments or {}))
    # A loop with such items leaves nothing to say of its tasks.
    found += [
        f"task {task.name}: {problem}"
        for task in ([] if found else known_tasks(package, arguments or {}))
        for problem in _problems(task)
    ]
    if found:
        # The iterations of a loop may have the same mistake.
        words = "\n".join(dict.fromkeys(found))
        raise click.ClickException(f"{package.pipeline_name}: {words}")


def _problems(task: KnownTask) -> list[str]:
    problems = [
        placeholders.problem(f"parameter {name}", value) for name, value in task.unsafe.items()
    ]
    checker = _CHECKERS.get(task.function)
    if checker and not problems:
        try:
            checker(task)
        except InputError as error:
            problems.append(error.message)
    if checker and not problems:
        problems = [_literal(*found) for found in left_literal(task.inputs).items()]
        problems += _too_large(task)
    return problems


def _literal(name: str, placeholder: str) -> str:
    # `set_env_variable` takes no parameter of a pipeline.
    on_the_task = name == "task_config"
    what, where = ("set_env_variable", "in the input env") if on_the_task else (name, "here")
    return (
        f"{what} holds {placeholder!r}, and a step on a cluster would get just that: KFP fills "
        "placeholders in only where they are the whole value of a task's argument in the pipeline. "
        "Hand it as that to a pipeline of its own (@dsl.pipeline), and use its parameter "
        f"{where}."
    )


def _too_large(task: KnownTask) -> list[str]:
    """Names inputs that are too large: a step with them does not start."""
    sizes = {
        name: len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
        for name, value in task.inputs.items()
    }
    total = sum(sizes.values())
    if total <= SIZE_LIMIT:
        return []
    largest = max(sizes, key=lambda name: sizes[name])
    return [
        f"the inputs are {total:,} bytes together, {largest} alone {sizes[largest]:,}; the limit "
        f"is {SIZE_LIMIT:,}, for KFP passes all inputs of a step as one argument. Put large "
        "content into an image, a ConfigMap or a file on a claim."
    ]


# A checker fills in what a required input would be that only the run knows; the rest of the
# inputs can be checked all the same. Optional ones that are not known count as unset.
_UNKNOWN_URI = "s3://unknown/artifact"
_UNKNOWN_SERVER = "http://unknown"
_ANY_NAME = "x"
_SETS_GPUS = {"gpus_per_node", "placement", "pod_template_patch"}
_TRAINING = "kfp_pytorch.training"
# Its hyperparameters that count something.
_COUNTS = {"batch-size", "epochs"}
_JOBS_FIELDS = "pod_template_patch, affinity, security_context and tolerations"
_SERVERS_FIELDS = "container, transformer, volumes, affinity, tolerations and service_patch"
# What KFP can read an input artifact from: backend/src/v2/objectstore/config.go.
_KFP_SCHEMES = ("gs", "s3", "minio", "mem", "oci")


def known_kind(task: KnownTask) -> JobKind | None:
    """Returns the kind of the job that a task creates; None where it creates none.

    None too where only the run knows of which kind it is. Raises InputError.
    """
    if task.function not in STEPS or {"kind", "manifest"} & task.unknown:
        return None
    return kind_of(task.function, task.inputs)


def job_inputs(task: KnownTask) -> JobInputs:
    """Returns the checked inputs of a task that creates a job. Raises InputError."""
    artifacts = {name: _artifact(task, name) for name in task.artifacts}
    kind = kind_of(task.function, task.inputs)
    inputs = {"image": _ANY_NAME, **task.inputs, **artifacts}
    known = task.inputs.get("pod_template_patch") or not task.unknown & _SETS_GPUS
    if inputs.get("nproc_per_node") == "gpu" and not known:
        # Whether the pods have GPUs only the run knows.
        del inputs["nproc_per_node"]
    return kind.parse_inputs(**inputs)


def job_of(task: KnownTask) -> dict[str, Any]:
    """Returns the job that a task creates, under some name. Raises InputError."""
    kind, inputs = kind_of(task.function, task.inputs), job_inputs(task)
    name = identity.job_name(inputs.name, _UNKNOWN_URI, kind.longest_suffix(inputs))
    return kind.build(inputs, job_name=name, labels={}, annotations={}, owner=None)


def _job(task: KnownTask) -> None:
    kind = known_kind(task)
    if kind is None:
        return
    made = job_of(task)
    if any(word.startswith(_TRAINING) for word in _command(task)):
        given = readers.mapping("hyperparameters", task.inputs.get("hyperparameters"))
        for name in _COUNTS & given.keys():
            readers.integer(f"hyperparameters[{name!r}]", given[name], minimum=1)
    for template in kind.pod_templates(made):
        look_at = "manifest" if task.inputs.get("manifest") else _JOBS_FIELDS
        pods.check(template, "training pods", look_at)
    if not task.inputs.get("patch_form"):  # That of another version of the Trainer.
        pods.warn_of_unknown_fields(kind.resource, made, task.name)


def deploy_inputs(task: KnownTask) -> service_manifest.ServiceInputs:
    """Returns the checked inputs of a task that deploys a model. Raises InputError."""
    model = _artifact(task, "model") if "model" in task.artifacts else None
    uri, metadata = (model.uri, model.metadata) if model else (None, {})
    inputs = services.checkable(task, _UNKNOWN_URI, _ANY_NAME)
    return service_manifest.parse_inputs(uri, metadata, **inputs)


def _kserve_deploy(task: KnownTask) -> None:
    inputs = deploy_inputs(task)
    # A patch may not fit what it is to change.
    made = service_manifest.manifest(inputs, None)
    for component in service_manifest.components(inputs):
        service_manifest.check_host(inputs.service_name, inputs.namespace or _ANY_NAME, component)
        template = pods.of_component(made["spec"][component])
        pods.check(template, f"{component}'s pods", _SERVERS_FIELDS)
    pods.warn_of_unknown_fields(INFERENCE_SERVICE, made, task.name)


def _check_named(task: KnownTask, *urls: str) -> None:
    """Refuses to ask a service over gRPC whose URL, which only the run knows, names no model."""
    makers = [task.sources[url] for url in urls if url in task.sources]
    of_grpc = any(maker.inputs.get("protocol") == "grpc" for maker in makers)
    if not of_grpc:
        return
    for name in ("protocol", "model_name"):
        if name not in task.unknown and not task.inputs.get(name):
            raise InputError(
                f"{name} is not set, and {urls[0]} is of a service that kserve_deploy deploys with "
                "protocol 'grpc': it is scheme, host and port alone. Set protocol to 'grpc', and "
                "model_name to the model's, which is kserve_deploy's output service_name unless it "
                "is given another."
            )


def _kserve_predict(task: KnownTask) -> None:
    _check_named(task, "url")
    given = parse_predict_inputs(**{"url": _UNKNOWN_SERVER, **task.inputs})
    url, protocol, name = given.url, given.protocol, given.model_name
    if "url" in task.unknown:
        # It may be the exact one of any protocol, with the model's name.
        protocol = protocol or cases.protocol_of(given.requests)
        name = name or _ANY_NAME
    if "protocol" in task.unknown or "model_name" in task.unknown:
        return
    target = resolve(url, protocol, name)
    cases.check_forms(target.protocol, given.requests)
    if target.protocol == "grpc":
        check_headers(given.headers)


def _kserve_rollout(task: KnownTask) -> None:
    unknown = {"service_name": _ANY_NAME, "action": PROMOTE}
    given = parse(RolloutInputs, "kserve_rollout", unknown | task.inputs)
    service_manifest.check_host(given.service_name, given.namespace or _ANY_NAME)


def _canary_check(task: KnownTask) -> None:
    _check_named(task, "canary_url", "stable_url")
    # Two URLs that only the run knows may both be empty.
    urls = {"canary_url", "stable_url"}
    left_out = urls if urls & task.unknown else set()
    known = {name: value for name, value in task.inputs.items() if name not in left_out}
    given = check_inputs.parse_inputs(**known)
    if given.protocol and "protocol" not in task.unknown:
        cases.check_forms(given.protocol, read_requests("requests", given.requests))


def _artifact(task: KnownTask, name: str) -> SimpleNamespace:
    """Returns an input artifact, whose URI and metadata are known where it is imported.

    Warns of one that KFP cannot read: it downloads it before the step starts.
    """
    source = task.sources.get(name)
    if source is None or source.function != IMPORTER or source.unknown:
        return SimpleNamespace(uri=_UNKNOWN_URI, metadata={})
    uri = str(source.inputs["uri"])
    if uri.partition("://")[0] not in _KFP_SCHEMES:
        click.echo(
            f"Warning: task {task.name}: its {name} is imported from {uri!r}, where KFP on a "
            "cluster cannot read: it would not start the step. Import a small object of a bucket, "
            f'with metadata={{"storage_uri": "{uri}"}}.',
            err=True,
        )
    return SimpleNamespace(uri=uri, metadata=source.inputs["metadata"])


def _register_model(task: KnownTask) -> None:
    model = _artifact(task, "model")
    unknown: dict[str, Any] = dict.fromkeys({"model_name"} & task.unknown, _ANY_NAME)
    # An address that only the run knows may be of either registry, or empty.
    unknown |= dict.fromkeys(
        {"registry_url", "mlflow_tracking_uri"} & task.unknown, _UNKNOWN_SERVER
    )
    inputs = parse_register_inputs(**task.inputs, **unknown)
    register_model.checked_record(inputs, model.uri, model.metadata, {}, "")


def _metric_gate(task: KnownTask) -> None:
    # A threshold that only the run knows is one that leaves something to pass and to refuse.
    pairs = (("minimum", "maximum"), ("maximum", "minimum"))
    unknown = {name: task.inputs.get(other, 0.0) for name, other in pairs if name in task.unknown}
    inputs = metric_gate.parse_inputs(**task.inputs, **unknown)
    if not _is_share(task):
        return
    for name in {"minimum", "maximum"} - task.unknown:
        value = getattr(inputs, name)
        if not (0 <= value <= 1 or abs(value) >= metric_gate.NO_MAXIMUM):
            raise InputError(
                f"{name} is {value:g}, but accuracy is a share, from 0 to 1; 97 % is 0.97."
            )


def _is_share(task: KnownTask) -> bool:
    """Whether the gate's metric is the accuracy that this project's own training reports."""
    job = task.sources.get("metrics")
    return (
        task.inputs.get("metric") == "accuracy" and job is not None and _TRAINING in _command(job)
    )


def _command(job: KnownTask) -> list[str]:
    command = job.inputs.get("command")
    return [str(word) for word in command] if isinstance(command, list) else []


_CHECKERS: dict[str, Callable[[KnownTask], object]] = {
    **dict.fromkeys(STEPS, _job),
    "canary_check": _canary_check,
    "compare_jobs": lambda task: compare_jobs.parse_inputs(**task.inputs),
    "kserve_deploy": _kserve_deploy,
    "kserve_predict": _kserve_predict,
    "kserve_rollout": _kserve_rollout,
    "metric_gate": _metric_gate,
    "preflight": lambda task: parse_needs(**task.inputs),
    "register_model": _register_model,
    "tensorboard": lambda task: parse(View, "tensorboard", task.inputs),
}
