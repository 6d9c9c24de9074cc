"""`kfp-pytorch doctor`: whether a cluster is ready for a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kfp_pytorch.launcher.readiness.findings import Finding
    from kfp_pytorch.launcher.readiness.needs import Needs
    from kfp_pytorch.launcher.reference import Reference

# By the worst finding; 2 is a wrong command.
_EXIT_CODES = {"ok": 0, "warning": 3, "error": 1}
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}
_COMPONENTS = ("pytorch_job", "kserve_deploy")


@click.command("doctor")
@click.option("-n", "--namespace", default="", help="Where the run is; default: the kubeconfig's.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A kubeconfig file; default: $KUBECONFIG, else ~/.kube/config.",
)
@click.option(
    "--service-account",
    "steps_account",
    default="pipeline-runner",
    show_default=True,
    help="The account of the steps; in a multi-user Kubeflow default-editor.",
)
@click.option(
    "--component",
    "components",
    multiple=True,
    default=_COMPONENTS,
    show_default=True,
    help="A component that the pipeline uses; may be repeated.",
)
@click.option("--num-nodes", default="", help="The inputs of the job, as of pytorch_job.")
@click.option("--gpus-per-node", default="")
@click.option("--gpu-resource", default="")
@click.option("--cpu", default="")
@click.option("--memory", default="")
@click.option("--node-selector", default="", metavar="JSON")
@click.option("--tolerations", default="", metavar="JSON")
@click.option("--output-uri", default="")
@click.option(
    "--output-endpoint", default="", metavar="URL", help="The object store of output_uri's bucket."
)
@click.option("--runtime", default="", help="The ServingRuntime of kserve_deploy.")
@click.option("--queue", default="", help="Kueue's LocalQueue.")
@click.option(
    "--job-service-account", "service_account", default="", help="The job's pods' account."
)
@click.option(
    "--launcher",
    type=click.Choice(["configmap", "image", "package"]),
    default="configmap",
    show_default=True,
    help="Where the pipeline package gets its launcher, as for compile.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(
    namespace: str,
    kubeconfig: Path | None,
    steps_account: str,
    launcher: str,
    as_json: bool,
    **inputs: Any,
) -> None:
    """Look whether a cluster is ready for a run; nothing is changed.

    Each line is ok, a warning or an error, with the command that mends it. The exit code is 0
    where all is ok, 3 where the worst is a warning and 1 where it is an error.
    """
    from kfp_pytorch.launcher.errors import StepError
    from kfp_pytorch.launcher.readiness import findings
    from kfp_pytorch.launcher.reference import reference

    needs = _needs(namespace, steps_account, inputs)
    if kubeconfig:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    try:
        found = _examined(needs, steps_account, reference() if launcher == "configmap" else None)
    except StepError as error:
        raise click.ClickException(error.message) from None
    worst = findings.worst(found)
    if as_json:
        listed = [vars(each) for each in found]
        click.echo(json.dumps({"worst": worst, "findings": listed}))
    else:
        for each in found:
            _show(each)
        click.echo(findings.counted(found))
    raise SystemExit(_EXIT_CODES[worst])


def _needs(namespace: str, steps_account: str, inputs: dict[str, Any]) -> Needs:
    from kfp_pytorch.launcher.errors import InputError
    from kfp_pytorch.launcher.inputs import k8s
    from kfp_pytorch.launcher.readiness.needs import parse_needs

    for name in ("node_selector", "tolerations"):
        try:
            inputs[name] = json.loads(inputs[name] or "null")
        except ValueError as error:
            raise click.UsageError(
                f"{name} is {inputs[name]!r}, which is no JSON: {error}."
            ) from None
    try:
        k8s.dns_subdomain("--service-account", steps_account)
        if not steps_account:
            raise InputError("--service-account is empty; name the account of the steps.")
        return parse_needs(namespace=namespace, **inputs)
    except InputError as error:
        raise click.UsageError(error.message) from None


def _examined(needs: Needs, account: str, launcher: Reference | None) -> list[Finding]:
    from kfp_pytorch.launcher.kubernetes import client
    from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy
    from kfp_pytorch.launcher.readiness.examine import examine
    from kfp_pytorch.launcher.readiness.survey import Survey

    policy = RetryPolicy(unavailability_budget=10.0, first_contact=10.0, connect=5.0, read=10.0)
    kube = client.connect(needs.namespace, policy=policy)
    return examine(Survey(kube, account), needs, launcher)


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level], bold=True)
    click.echo(f"{level} {finding.about}: {finding.what}")
    if finding.mend:
        click.echo(f"{'':<8} → {finding.mend}")
