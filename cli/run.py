"""`kfp-pytorch run`: a pipeline, on this machine or on KFP."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_pytorch.cli.errors import ERROR_AS_JSON
from kfp_pytorch.cli.kfp.options import endpoint_of, endpoint_options, is_named
from kfp_pytorch.cli.kfp.parameters import arguments_of
from kfp_pytorch.cli.local import root_option, root_or_default
from kfp_pytorch.cli.runs.signals import Interrupted, interruptible

if TYPE_CHECKING:
    from kfp_pytorch.cli.runs import before
    from kfp_pytorch.client.packages.find import Package
    from kfp_pytorch.client.packages.known_tasks import KnownTask

_PATHS = ("secrets", "runtimes")
_ON_KFP = ("wait", "name", "experiment", "pipeline_root", "service_account")


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    root: Path
    pipeline: str
    locally: bool
    kubeconfig: Path | None
    given: tuple[str, ...]
    parameters_file: Path | None
    keep: bool
    as_json: bool
    resume: bool
    cpu: bool
    secrets: list[str]
    claims: list[str]
    runtimes: list[str]

    @property
    def kept_options(self) -> dict[str, Any]:
        """The options that a run on this machine has again when it is resumed."""
        names = ("cpu", "secrets", "claims", "runtimes")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


@click.command("run", short_help="Run a pipeline, on this machine or on KFP.")
@click.argument("pipeline")
@click.option(
    "--local", "locally", is_flag=True, help="The steps and their jobs run on this machine."
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The steps run here, and their jobs on the cluster of this file.",
)
@click.option(
    "-p",
    "--parameter",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter; may be repeated. `kfp-pytorch params PIPELINE` lists them.",
)
@click.option(
    "--parameters",
    "parameters_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file with parameters, YAML or JSON; -p comes before it.",
)
@click.option("--wait", is_flag=True, help="Follow a run on KFP to its end.")
@click.option("--name", default="", help="Of a run on KFP; default: the pipeline's and the time.")
@click.option("--experiment", default="", help="On KFP; made if there is none.")
@click.option("--pipeline-root", default="", metavar="URI", help="Where KFP keeps artifacts.")
@click.option("--service-account", default="", help="Of the steps' pods on KFP.")
@click.option("--keep", is_flag=True, help="Leave the local cluster and the endpoint up.")
@click.option("--json", "as_json", is_flag=True, help="End with the summary as one JSON object.")
@click.option(
    "--resume",
    is_flag=True,
    help="Resume the pipeline's last run, from its checkpoints and with its parameters and "
    "options; those given replace the ones of that run.",
)
@click.option("--cpu", is_flag=True, help="No pod gets a GPU: training is on the CPU.")
@click.option(
    "--secrets",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path, exists=True),
    help="Secrets and ConfigMaps for a --local run: YAML of Kubernetes, NAME.env with lines "
    "KEY=VALUE, or a folder of these and of folders NAME with a file a key; may be repeated.",
)
@click.option(
    "--claim",
    "claims",
    multiple=True,
    metavar="NAME=FOLDER",
    help="A claim whose content is a folder of this machine; may be repeated.",
)
@click.option(
    "--runtimes",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path, exists=True),
    help="ServingRuntimes for a --local run, as YAML of Kubernetes; may be repeated.",
)
@endpoint_options
@root_option
def run(root: Path | None, **options: Any) -> None:
    """Run PIPELINE: a name that comes with kfp-pytorch, a compiled YAML, or FILE.py:FUNCTION.

    With --host, or what stands in for it, the run is on KFP; all that is wrong with its parameters
    is found before.

    With --json, everything but the summary goes to stderr, and the summary is the last line of
    stdout.
    """
    endpoint, on_kfp = endpoint_of(options), {name: options.pop(name) for name in _ON_KFP}
    options |= {name: [str(path.absolute()) for path in options[name]] for name in _PATHS}
    options["claims"] = [_absolute(text) for text in options["claims"]]
    request = Request(root_or_default(root), **options)
    with _ended_as_json(request):
        here = request.locally or bool(request.kubeconfig)
        _check_place(request, endpoint, on_kfp, here=here)
        if not here:
            _on_kfp(request, endpoint, on_kfp)
            return
        with interruptible():
            result = _execute(request)
    if result["status"] != "succeeded":
        raise SystemExit(1)


def _check_place(
    request: Request, endpoint: dict[str, str], on_kfp: dict[str, Any], *, here: bool
) -> None:
    """Checks that it is said where to run, and nothing of another place."""
    if (request.locally and request.kubeconfig) or not (here or is_named(endpoint)):
        raise click.UsageError(
            "Say where: --local for this machine, --host URL for KFP, or --kubeconfig FILE to run "
            "the steps here and their jobs on a cluster."
        )
    of_local = {
        "--cpu": request.cpu,
        "--secrets": request.secrets,
        "--claim": request.claims,
        "--runtimes": request.runtimes,
    }
    for option in [name for name, given in of_local.items() if given and not request.locally]:
        raise click.UsageError(f"{option} is for --local; a cluster has its own.")
    elsewhere = {"--keep": request.keep, "--resume": request.resume}
    for option in [name for name, given in elsewhere.items() if given and not here]:
        raise click.UsageError(f"{option} is for a run here, with --local or --kubeconfig.")
    for name in [name for name, given in {**on_kfp, "host": endpoint["host"]}.items() if given]:
        if here:
            raise click.UsageError(f"--{name.replace('_', '-')} is for a run on KFP.")


def _on_kfp(request: Request, endpoint: dict[str, str], on_kfp: dict[str, Any]) -> None:
    from kfp_pytorch.cli.kfp import run as kfp_run

    wait = on_kfp.pop("wait")
    arguments = arguments_of(request.given, request.parameters_file)
    wanted = kfp_run.Wanted(request.pipeline, arguments, **on_kfp)
    kfp_run.run(endpoint, wanted, wait=wait, as_json=request.as_json)


def _absolute(claim: str) -> str:
    name, _, folder = claim.partition("=")
    return f"{name}={Path(folder).expanduser().absolute()}" if folder else claim


@contextmanager
def _ended_as_json(request: Request) -> Iterator[None]:
    """Prints why a run ended early, as JSON too when that was asked for."""
    try:
        yield
    except click.ClickException as error:
        if request.as_json:
            _print_json(request, "failed", error.format_message())
            click.get_current_context().meta[ERROR_AS_JSON] = False
        raise
    except Interrupted as interrupted:
        click.echo(f"Ended by {interrupted}; nothing is left running.", err=True)
        if interrupted.summary:
            from kfp_pytorch.cli.runs import screen

            click.echo("\n".join(screen.hints(interrupted.summary)), err=True)
        if request.as_json and interrupted.summary:
            click.echo(_as_json(request, interrupted.summary))
        elif request.as_json:
            _print_json(request, "terminated", f"ended by {interrupted}")
        raise SystemExit(interrupted.exit_code) from None


def _as_json(request: Request, summary: dict[str, Any]) -> str:
    """The summary, without an endpoint that has ended with the cluster of the run."""
    from kfp_pytorch.local import lifecycle

    ended = not request.kubeconfig and lifecycle.status(request.root) is None
    return json.dumps({**summary, "endpoint": ""} if ended else summary)


def _print_json(request: Request, status: str, error: str) -> None:
    from kfp_pytorch.cli.runs import summary

    click.echo(json.dumps(summary.empty(request.pipeline, status, error)))


def _resumed(request: Request, options: dict[str, Any]) -> Request:
    """The request with the options that the resumed run had, but for those that are given."""
    lacking = {name: value for name, value in options.items() if not getattr(request, name)}
    if lacking and request.locally:
        words = ["--cpu"] if lacking.get("cpu") else []
        for name, option in (("secrets", "secrets"), ("claims", "claim"), ("runtimes", "runtimes")):
            words += [f"--{option} {shlex.quote(value)}" for value in lacking.get(name, [])]
        click.echo(f"Resumed with the options of the run: {' '.join(words)}", err=True)
    return replace(request, **lacking)


def _on_this_machine(
    request: Request, package: Package, arguments: dict[str, Any]
) -> tuple[Package, list[KnownTask], before.Given]:
    """The package as a run takes it, and of one with --local its tasks and what they are given."""
    from kfp_pytorch.cli.runs import before
    from kfp_pytorch.client.packages import without_gpus
    from kfp_pytorch.client.packages.known_tasks import known_tasks

    if not request.locally:
        return package, [], before.Given()
    package = before.local_package(package)
    given = before.read(request.secrets, request.claims, request.runtimes, cpu=request.cpu)
    tasks = list(known_tasks(package, arguments))
    if request.cpu:
        for line in dict.fromkeys(without_gpus.changes(tasks)):
            click.echo(f"--cpu: {line}", err=True)
        tasks = [without_gpus.changed(task) for task in tasks]
        on_cpu = {"CUDA_VISIBLE_DEVICES": ""}
        given = replace(given, variables=on_cpu, without_gpus=without_gpus.steps(package))
    pods = before.pods(package, arguments)
    for line in dict.fromkeys(before.mounts(pods, tasks)):
        click.echo(f"Note: {line}", err=True)
    return package, tasks, replace(given, pods=pods)


def _execute(request: Request) -> dict[str, Any]:
    """Checks everything that can be checked, runs, and prints the summary; returns it."""
    from kfp_pytorch.cli.runs import before, clusters, objects, run_folder, screen, session
    from kfp_pytorch.cli.runs.events import TerminalProgress
    from kfp_pytorch.client.packages import checks, find, local_features, parameters
    from kfp_pytorch.launcher.constants import REPLACE_OTHER_ENV
    from kfp_pytorch.local.kfp import task_settings

    began = time.monotonic()
    package = find.find_one(request.pipeline)
    given_arguments = arguments_of(request.given, request.parameters_file)
    arguments = parameters.values(package, given_arguments)
    if request.resume:
        wanted = run_folder.run_to_resume(request.root / "runs", package.pipeline_name, arguments)
        click.echo(f"Resuming the run {wanted.name}.", err=True)
        request = _resumed(request, wanted.options)
    else:
        wanted = run_folder.new_run(package.pipeline_name, arguments)
    wanted = replace(wanted, options=request.kept_options)
    parameters.require(package, wanted.arguments)
    checks.check(package, wanted.arguments)
    local_features.check(package, task_settings.HEEDED if request.locally else ())
    package, tasks, given = _on_this_machine(request, package, wanted.arguments)
    progress = TerminalProgress(err=request.as_json)
    cluster = clusters.cluster(request.root, request.kubeconfig, wanted.id, keep=request.keep)
    # An endpoint on a cluster elsewhere stays.
    kept = request.keep or bool(request.kubeconfig)
    with cluster as target, objects.given(target, given.objects, given.claims):
        before.check(package.pipeline_name, tasks, given.pods, target)
        settings = {"pods": given.pods, "without_gpus": given.without_gpus}
        replacing = {REPLACE_OTHER_ENV: "1"} if request.resume else {}
        variables = {**given.variables, **replacing}
        result = session.run(package, wanted, target, progress, variables=variables, **settings)
        took = time.monotonic() - began
        columns = shutil.get_terminal_size().columns
        text = screen.text(result, took, kept=kept, columns=columns)
        click.echo(f"\n{text}", err=request.as_json)
        if result["error"]:
            click.echo(f"\nError: {result['error'].partition(chr(10))[0]}", err=True)
    if request.keep and not request.kubeconfig:
        click.echo("The cluster stays up; `kfp-pytorch local down` ends it.", err=request.as_json)
    if request.as_json:
        click.echo(_as_json(request, result))
    return result
