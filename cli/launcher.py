"""`kfp-pytorch launcher`: the ConfigMap that the steps of a compiled pipeline read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kfp_pytorch.components.bundle import Reference


@click.group("launcher")
def launcher() -> None:
    """The launcher that the steps of a compiled pipeline read."""


@launcher.command("install")
@click.argument("package", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("-n", "--namespace", required=True, help="The namespace that the pipelines run in.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A kubeconfig file; default: $KUBECONFIG, else ~/.kube/config.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def install(package: Path | None, namespace: str, kubeconfig: Path | None, as_json: bool) -> None:
    """Install the ConfigMap with the launcher that PACKAGE asks for.

    PACKAGE is a pipeline package, the YAML of a compiled pipeline. Without it, this version's
    launcher is installed.
    """
    from kfp_pytorch.components import bundle
    from kfp_pytorch.launcher.errors import InputError
    from kfp_pytorch.launcher.inputs import k8s

    try:
        if not k8s.dns_label("--namespace", namespace):
            raise click.UsageError(f"--namespace is {namespace!r}, which names none.")
    except InputError as error:
        raise click.UsageError(error.message) from None
    own = bundle.reference()
    if package:
        _check_wanted(package, own)
    if kubeconfig:
        os.environ["KUBECONFIG"] = str(kubeconfig)
    installed = _installed(own, namespace)
    if as_json:
        found = {"namespace": namespace, "configmap": own.name, "installed": installed}
        click.echo(json.dumps(found))
        return
    done = "is installed" if installed else "is there already"
    click.echo(f"ConfigMap {namespace}/{own.name} {done}.")


def _check_wanted(package: Path, own: Reference) -> None:
    """Check that a pipeline package asks for this version's launcher.

    Raises click.ClickException: it asks for another one, or for none.
    """
    from kfp_pytorch.client.packages import find
    from kfp_pytorch.components import forms

    wanted = forms.wanted_configmaps(find.find_one(str(package)).spec)
    if not wanted:
        raise click.ClickException(
            f"No step of {package} reads its launcher from a ConfigMap; nothing is to be installed."
        )
    for other in sorted(wanted - {own}, key=lambda each: each.name):
        if other.version == own.version:
            raise click.ClickException(
                f"{package} asks for {other.name}, and this kfp-pytorch {own.version} has "
                f"{own.name}: the pipeline was compiled from other sources of the same version. "
                "Install from those, or compile the pipeline again and upload it."
            )
        raise click.ClickException(
            f"{package} asks for {other.name}, which kfp-pytorch {other.version} has; this is "
            f"{own.version}. Install kfp-pytorch {other.version}, from its tag or its wheel, and "
            "run this command again."
        )


def _installed(own: Reference, namespace: str) -> bool:
    """Create the ConfigMap; return whether it was not there already.

    Raises click.ClickException: it cannot be created.
    """
    import yaml

    from kfp_pytorch.components import bundle
    from kfp_pytorch.launcher.constants import CONFIG_MAP
    from kfp_pytorch.launcher.errors import StepError
    from kfp_pytorch.launcher.kubernetes import client
    from kfp_pytorch.launcher.kubernetes.api_errors import AlreadyExists, Forbidden
    from kfp_pytorch.launcher.kubernetes.transport import RetryPolicy

    manifest: dict[str, Any] = yaml.safe_load(bundle.manifest_path().read_text(encoding="utf-8"))
    place = f"ConfigMap {namespace}/{own.name}"
    try:
        policy = RetryPolicy(unavailability_budget=60.0)
        kube = client.connect(namespace, policy=policy, notify=lambda w: click.echo(w, err=True))
        try:
            kube.create(CONFIG_MAP, manifest)
        except AlreadyExists:
            there = kube.get(CONFIG_MAP, own.name)
            if there.get("binaryData") != manifest["binaryData"]:
                raise click.ClickException(
                    f"{place} is there with other content. Delete it with `kubectl delete "
                    f"configmap {own.name} -n {namespace}` and run this command again."
                ) from None
            return False
    except StepError as error:
        words = error.message
        if isinstance(error, Forbidden) and error.call.verb == "create":
            # The role of the steps, which the message names, may not create it either.
            words = (
                f"{error.short}\nHave somebody who has it run this command, or `kubectl apply "
                f"--server-side -n {namespace} -f manifests/launcher.yaml`.\n"
                f"The server said: {error.server_message}"
            )
        raise click.ClickException(words) from None
    return True
