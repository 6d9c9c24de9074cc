"""`kfp-pytorch compile`: from Python to the YAML that a cluster takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kfp_pytorch.client.packages.find import Package


@click.command("compile")
@click.argument("pipelines", nargs=-1, metavar="[PIPELINE|FILE.py[:FUNCTION]|FILE.yaml]...")
@click.option("--all", "everything", is_flag=True, help="Every pipeline of kfp-pytorch.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default="this folder",
    help="A folder, or a file ending in .yaml for one pipeline.",
)
@click.option(
    "--launcher",
    default="",
    metavar="configmap|image=REF|package[=REQUIREMENT]",
    help="Where the steps get the launcher from: the ConfigMap of manifests/, an image that has "
    "it, or a Python package that pip installs. Default: configmap; a compiled YAML keeps what it "
    "has.",
)
@click.option(
    "--kfp-version",
    default="",
    metavar="VERSION",
    help="Refuse what a KFP of this version, such as 2.15, does not know.",
)
@click.option("--verbose", is_flag=True, help="Print how large the run's Workflow becomes.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON object.")
def compile_command(
    pipelines: tuple[str, ...],
    everything: bool,
    output: Path,
    launcher: str,
    kfp_version: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Compile pipelines to YAML for a Kubeflow cluster.

    PIPELINE is the name of one that comes with kfp-pytorch; a compiled YAML is checked and written
    again, as with another --launcher. Constants that cannot work, such as
    num_nodes=0, are found here.
    """
    from kfp_pytorch.client.packages import backends, checks, find, parameters, workflow

    version = backends.read_version(kfp_version) if kfp_version else None

    names = [*pipelines, *(find.shipped() if everything else [])]
    if not names:
        raise click.UsageError(
            f"Name a pipeline ({', '.join(find.shipped())}) or a FILE.py, or use --all."
        )
    found = [package for name in dict.fromkeys(names) for package in find.find(name)]
    targets = _targets(found, output)
    found = [_with_launcher(package, launcher) for package in found]
    for package in found:
        # Its size first: the inputs are checked for every iteration of a loop.
        workflow.check(package, verbose=verbose)
        checks.check(package)
        if version:
            backends.check(package, version)
        for name in parameters.passed_as_none(package):
            click.echo(
                f"Warning: {package.pipeline_name}: the default of parameter {name} is None, "
                f"{parameters.NO_NONE}",
                err=True,
            )
    written = []
    for package, target in zip(found, targets, strict=True):
        size = _write(package, target)
        written.append({"pipeline": package.pipeline_name, "path": str(target), "bytes": size})
        if not as_json:
            click.echo(f"{target} ({size:,} bytes)")
    if as_json:
        click.echo(json.dumps({"packages": written}))


def _targets(found: list[Package], output: Path) -> list[Path]:
    if output.suffix in (".yaml", ".yml"):
        if len(found) > 1:
            raise click.UsageError(
                f"--output {output} is one file for {len(found)} pipelines; name a folder."
            )
        return [output]
    targets = [output / f"{package.name}.yaml" for package in found]
    if len(set(targets)) < len(targets):
        raise click.UsageError("Two of these pipelines have the same name; compile them apart.")
    return targets


def _with_launcher(package: Package, launcher: str) -> Package:
    from kfp_pytorch.components import forms
    from kfp_pytorch.launcher.errors import InputError
    from kfp_pytorch.launcher.inputs import k8s

    if not launcher:
        return package
    try:
        if launcher.startswith("image="):
            k8s.image("--launcher image", launcher.removeprefix("image="))
        return replace(package, spec=forms.with_launcher(package.spec, launcher))
    except InputError as error:
        raise click.UsageError(error.message) from None
    except ValueError as error:
        raise click.UsageError(f"--launcher: {error}") from None


def _write(package: Package, target: Path) -> int:
    """Writes a package; returns its size in bytes. Raises click.ClickException."""
    content = package.text().encode()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise click.ClickException(f"Cannot write {target}: {error.strerror or error}") from None
    return len(content)
