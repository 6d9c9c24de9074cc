"""What the Trainer's admission webhooks fill in, and refuse, in a TrainJob.

Source: kubeflow/trainer v2.3.0, `pkg/webhooks` and `pkg/runtime/framework/plugins/torch`.
"""

from __future__ import annotations

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
    reference = job["spec"]["runtimeRef"]
    kind, name = reference["kind"], reference["name"]
    shown = f"{kind}.{TRAINJOB.group}"
    if kind not in runtimes.KINDS:
        yield f'spec.runtimeRef: Invalid value: "{name}": unsupported runtime: {shown}'
    elif runtimes.find(api, job) is None:
        word = kind[0].lower() + kind[1:]
        yield (
            f'spec.runtimeRef: Invalid value: "{name}": {shown} "{name}" not found: specified '
            f"{word} must be created before the TrainJob is created"
        )
    given = (job["spec"].get("trainer") or {}).get("env") or []
    reserved = [each["name"] for each in given if each["name"] in pods.RESERVED]
    if reserved:
        yield (
            "spec.trainer.env: Invalid value: must not have reserved envs, invalid envs "
            f"configured: [{' '.join(reserved)}]"
        )
    for patch in job["spec"].get("runtimePatches") or []:
        if "/" not in patch["manager"].strip("/"):
            yield (
                f'spec.runtimePatches: Invalid value: "{patch["manager"]}": must be a '
                'domain-prefixed path (such as "acme.io/foo")'
            )
