"""What the Trainer's admission webhooks fill in, and refuse, in a TrainJob.

Source: kubeflow/trainer v2.3.0, `pkg/webhooks` and `pkg/runtime/framework/plugins/torch`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from kfp_pytorch.launcher.constants import TRAINJOB
from kfp_pytorch.local.apiserver import errors, objects
from kfp_pytorch.local.apiserver.errors import Object
from kfp_pytorch.local.apiserver.store.api import Api
from kfp_pytorch.local.controllers.kubernetes import one_machine
from kfp_pytorch.local.controllers.trainjob import pods, runtimes

WEBHOOK = "validator.trainjob.trainer.kubeflow.org"


def install(api: Api) -> None:
    """Default and check every TrainJob."""

    def default(job: Object) -> None:
        job["spec"] = pods.defaulted(job)["spec"]

    def check(job: Object) -> None:
        wrong = list(_wrong(api, job))
        if wrong:
            raise errors.denied(WEBHOOK, wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]")

    api.add_mutating_webhook(TRAINJOB, default)
    api.add_webhook(TRAINJOB, check)
    api.add_webhook(TRAINJOB, partial(_check_here, api))


def _check_here(api: Api, job: Object) -> None:
    """Refuse a new job that this machine cannot run."""
    runtime = runtimes.find(api, job)
    if objects.metadata(job).get("resourceVersion") or runtime is None or not pods.is_ours(job):
        return
    name, why = job["spec"]["runtimeRef"]["name"], runtimes.unsupported(runtime)
    if why:
        raise errors.denied(
            one_machine.WEBHOOK,
            f"the runtime {name!r} {why}, and the cluster of this machine runs runtimes of torch "
            "with the one job 'node' alone, such as torch-distributed.",
        )
    template, count = runtimes.job_template(runtime, job), pods.nodes(job, runtime)
    made = [pods.pod(job, template, number, count) for number in range(count)]
    one_machine.check_pods(api, job, made, made)


def _wrong(api: Api, job: Object) -> Iterator[str]:
    """What is wrong with a TrainJob. A name that is too long for pods is accepted, and never runs.

    The Trainer writes one path in two ways.
    """
    spec = job["spec"]
    reference = {field: spec["runtimeRef"][field] for field in ("name", "apiGroup", "kind")}
    kind, name = reference["kind"], reference["name"]
    shown = f"{kind}.{TRAINJOB.group}"
    if kind not in runtimes.KINDS:
        yield f"unsupported runtime: {shown}"
        return
    runtime = runtimes.find(api, job)
    if runtime is None:
        path = "spec.RuntimeRef" if kind.startswith("Cluster") else "spec.runtimeRef"
        yield (
            f'{path}: Invalid value: {_json(reference)}: {shown} "{name}" not found: specified '
            f"{kind[0].lower()}{kind[1:]} must be created before the TrainJob is created"
        )
        return
    jobs = runtimes.job_names(runtime)
    for part in spec.get("initializer") or {}:
        if f"{part}-initializer" not in jobs:
            yield (
                f"spec.runtimeRef: Invalid value: {_json(reference)}: must have {part}-initializer "
                f"job when trainJob is configured with input {part}Config"
            )
    given = (spec.get("trainer") or {}).get("env") or []
    reserved = [each["name"] for each in given if each["name"] in pods.RESERVED]
    if reserved:
        yield (
            f"spec.trainer.env: Invalid value: {_json(given)}: must not have reserved envs, "
            f"invalid envs configured: [{' '.join(reserved)}]"
        )
    for patch in spec.get("runtimePatches") or []:
        if "/" not in patch["manager"].strip("/"):
            yield (
                f'spec.runtimePatches.manager: Invalid value: "{patch["manager"]}": must be a '
                'domain-prefixed path (such as "acme.io/foo")'
            )


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
