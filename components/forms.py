"""Where the steps of a pipeline package get the launcher: a ConfigMap, an image, a Python package.

Each form of a step is short, for the Workflow of a run has a step's container nine times (once in
its spec, eight times in its nodes): it imports the component's function. The
functions here turn one form into another.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp import components
from kfp.dsl import component_factory, graph_component
from packaging.requirements import InvalidRequirement, Requirement

from kfp_pytorch import __version__
from kfp_pytorch.components import bundle
from kfp_pytorch.components.minimize import minimize

# Any image with Python 3.11 or newer and a shell will do.
BASE_IMAGE = "python:3.12-slim"
# `image` of a local run: the Python that runs the command. kfp.local warns of a name without
# `python` in it.
THIS_PYTHON = "this Python"
PACKAGE = f"kfp-pytorch-launcher=={__version__}"

_IMPORT = re.compile(r"^from (kfp_pytorch\.components\.[\w.]+) import (\w+)\n\Z", re.MULTILINE)
_REFERENCE = re.compile(r"^SHA='(\w{64})'\nNAME='kfp-pytorch-launcher-([^']+)-'", re.MULTILINE)
_PIP = "python3 -m pip install"
# What KFP installs for a Python that the launcher does not run with.
_OF_OLD_PYTHON = re.compile(r""" '[^']*; ?python_version ?< ?"3\.9"'""")
# What would end the quotation marks that KFP puts around a requirement in a shell's command.
_NO_REQUIREMENT = re.compile(r"^-|['\"\\`$\x00-\x1f]")

Object = dict[str, Any]


def with_launcher(spec: Object, launcher: str) -> Object:
    """Turns a pipeline package into the form that a text names.

    Only this project's steps change; all others, their images and what they install stay. So does
    an image that the author of the pipeline gave a step, but for the form `image`.

    Args:
        spec: The pipeline's specification (the first document of a compiled YAML), parsed.
        launcher: `configmap`, `image=REF`, `package` or `package=REQUIREMENT`.

    Returns:
        A new specification.

    Raises:
        ValueError: The text is none of these.
    """
    kind, _, value = launcher.partition("=")
    if launcher == "configmap":
        return _changed(spec, BASE_IMAGE, _installing(), configmap_source)
    if kind == "image" and value:
        return image_form(spec, value)
    if launcher == "package" or (kind == "package" and value):
        return package_form(spec, value or PACKAGE)
    raise ValueError(
        f"The launcher is {launcher!r}; write configmap, image=REF, package or package=REQUIREMENT."
    )


def pipeline_with_launcher(pipeline: Any, launcher: str) -> Any:
    """Turns a pipeline into the form that a text names, before it is compiled or submitted.

    Args:
        pipeline: What `dsl.pipeline` made; or a component, or a compiled pipeline that
            `kfp.components` loaded.
        launcher: As for `with_launcher`.

    Returns:
        A copy, for `kfp.compiler.Compiler().compile` and `kfp.Client`.

    Raises:
        ValueError: As for `with_launcher`.
    """
    if not isinstance(pipeline, graph_component.GraphComponent):
        spec = with_launcher(json_format.MessageToDict(pipeline.pipeline_spec), launcher)
        platform = json_format.MessageToDict(pipeline.platform_spec)
        documents = [spec, *([platform] if platform else [])]
        return components.load_component_from_text(yaml.safe_dump_all(documents))
    result = copy.deepcopy(pipeline)
    message = result.pipeline_spec.deployment_spec
    spec = {"deploymentSpec": json_format.MessageToDict(message)}
    changed = with_launcher(spec, launcher)["deploymentSpec"]
    message.Clear()
    json_format.ParseDict(changed, message)
    return result


def image_form(spec: Object, image: str) -> Object:
    """Has each step run in an image that has the launcher, and install nothing."""
    return _changed(spec, image, [], _import)


def package_form(spec: Object, requirement: str) -> Object:
    """Has pip install the launcher, as a Python package, when a step starts.

    KFP's own `packages_to_install` does not install KFP with a package whose name begins with
    `kfp`, so its command is extended here. Raises ValueError: the requirement, which may be a
    wheel's URL, cannot be put between quotation marks.
    """
    try:
        # What pip would refuse in each step, its own parser refuses here. It wants a URL named.
        url = re.match(r"\.{0,2}/|[\w+.-]+://", requirement)
        Requirement(f"wheel @ {requirement}" if url else requirement)
        unusable = bool(_NO_REQUIREMENT.search(requirement))
    except InvalidRequirement:
        unusable = True
    if unusable:
        raise ValueError(
            f"The package is {requirement!r}, which pip does not take; write a requirement without "
            "quotation marks, backslashes and $, as in kfp-pytorch-launcher==1.0, or a wheel's URL."
        )
    shell, option, script = _installing()
    first = component_factory.make_pip_install_command([requirement], "")
    script = script.replace(_PIP, f"{first}  &&  {_PIP}", 1)
    return _changed(spec, BASE_IMAGE, [shell, option, script], _import)


def configmap_source(module: str, function: str) -> str:
    """Returns the source of a step that reads its launcher from the ConfigMap."""
    return _bootstrap() + _import(module, function)


def configmap_command(command: list[str], module: str, function: str) -> list[str]:
    """Returns the command of a component in configmap form, from the one that KFP made."""
    return [*_installing(), *_run(command), configmap_source(module, function)]


def wanted_configmaps(spec: Object) -> set[bundle.Reference]:
    """Returns the ConfigMaps that the steps read, one for each version that has steps in it."""
    found = (_REFERENCE.search(container["command"][-1]) for container, *_ in _steps(spec))
    return {bundle.Reference(version=match[2], sha256=match[1]) for match in found if match}


def function_of(container: Object) -> str:
    """Returns the name of the component's function that a step runs; empty for other steps."""
    found = _IMPORT.search((container.get("command") or [""])[-1])
    return found[2] if found else ""


def _changed(
    spec: Object, image: str, install: list[str], source: Callable[[str, str], str]
) -> Object:
    result = copy.deepcopy(spec)
    for container, module, function in _steps(result):
        run = _run(container["command"])
        # Any image will do for a step that installs KFP: one that its author chose stays.
        if not install or container["command"][:-1] == run:
            container["image"] = image
        container["command"] = [*install, *run, source(module, function)]
    return result


def _steps(spec: Object) -> Iterator[tuple[Object, str, str]]:
    """Yields the containers of this project's steps, with the module and name of the function."""
    for executor in spec.get("deploymentSpec", {}).get("executors", {}).values():
        container = executor.get("container") or {}
        found = _IMPORT.search((container.get("command") or [""])[-1])
        if found:
            yield container, found[1], found[2]


def _run(command: list[str]) -> list[str]:
    """The part of KFP's command that writes the source to a file and runs it, unindented."""
    return [re.sub(" +", " ", word) for word in command[-4:-1]]


def _import(module: str, function: str) -> str:
    return f"from {module} import {function}\n"


def _installing() -> list[str]:
    """The head of the command of a step that has KFP installed."""
    shell, option, script = component_factory._get_packages_to_install_command()
    return [shell, option, _OF_OLD_PYTHON.sub("", script).strip()]


def _bootstrap() -> str:
    """The bootstrap with what it leaves open filled in, as short as it can be."""
    text = Path(__file__).with_name("bootstrap.py").read_text(encoding="utf-8").split('"""', 2)[2]
    wanted = bundle.reference()
    text = minimize(text)
    return text.replace("@VERSION", wanted.version).replace("@SHA256", wanted.sha256)
