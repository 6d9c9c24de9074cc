"""What a component is called with in a pipeline, as people write it, made what KFP takes."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from kfp.dsl.for_loop import Collected, LoopArgumentVariable
from kfp.dsl.pipeline_channel import OneOfMixin, PipelineChannel, PipelineParameterChannel
from kfp.dsl.pipeline_task import PipelineTask
from kfp.dsl.structures import InputSpec
from kfp.dsl.types.type_utils import get_parameter_type_name, is_parameter_type

from kfp_pytorch.launcher.errors import InputError
from kfp_pytorch.launcher.inputs import readers
from kfp_pytorch.launcher.text import cut


def _string(name: str, value: Any) -> str:
    if isinstance(value, bool):
        raise InputError(f"{name} must be a string, not {value}.")
    return readers.rendered(name, value)


# By the declared type, what reads a value.
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "STRING": _string,
    "NUMBER_INTEGER": functools.partial(readers.integer, minimum=-(2**31)),
    "NUMBER_DOUBLE": readers.number,
    "BOOLEAN": readers.boolean,
    "LIST": readers.sequence,
    "STRUCT": readers.mapping,
}
_JSON_TYPES = {"STRUCT": "dict", "LIST": "list"}
_NUMBERS = ("NUMBER_INTEGER", "NUMBER_DOUBLE")
# Unset, these have a value of their own.
_WITH_EMPTY = {"STRING", "LIST", "STRUCT"}
# Of the lists the command lines.
_COMMANDS = {"command"}
# Lists and dicts of texts, numbers and truth values.
_OF_SCALARS = {
    *("command", "args", "hyperparameters", "image_pull_secrets", "dataset_names"),
    *("labels", "annotations", "node_selector", "headers"),
}
# Its value may hold secrets, so no message shows it.
_CONFIDENTIAL = "env"
_SHOWN = 200
# What KFP turns into a value of the run, in a text. Its own pattern finds no artifact.
_CHANNEL = re.compile(r"\{\{channel:task=([^;]*);name=([^;]*);type=(.*?);\}\}")
# What KFP takes for a placeholder, but for those of a run, which may be a whole argument.
_PLACEHOLDER = re.compile(
    r"\{\{\$(?!\.(?:pipeline_(?:job|task|root)\w*|workspace_path)\}\}).*?\}\}", re.DOTALL
)
_WORKSPACE = "{{$.workspace_path}}"
# In the name of a part of a loop's item.
_PART = LoopArgumentVariable.SUBVAR_NAME_DELIMITER
_OF_ITS_OWN = (
    "Put this task into a pipeline of its own (@dsl.pipeline), pass it to that, and put its "
    "parameter here."
)
_TASK_AS_TEXT = f"<{PipelineTask.__module__}.{PipelineTask.__qualname__} object"


def taken(inputs: Mapping[str, InputSpec], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call as KFP takes them.

    What the run makes, such as outputs of tasks, stays as it is: KFP checks its type.

    Args:
        inputs: The component's inputs.
        given: The arguments of the call.

    Returns:
        The arguments without those that are None, and with a dict of artifacts spread over the
        inputs that take one each.

    Raises:
        InputError: A value cannot be meant for its input, or KFP would not hand it on.
    """
    spread = [(name, value) for name, value in _spread(inputs, given) if value is not None]
    return {name: _argument(name, value, inputs.get(name)) for name, value in spread}


def unchanged(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call to a component of an author's own, whatever its inputs.

    Args:
        given: The arguments of the call.

    Returns:
        The same values, without those that are None.

    Raises:
        InputError: KFP would not hand a value on as it is, or the pods of a job have no workspace.
    """
    found = {
        name: value if isinstance(value, PipelineChannel) else _plain(name, value)
        for name, value in given.items()
        if value is not None
    }
    for name, value in found.items():
        for text in _texts(value):
            if _WORKSPACE in text:
                raise InputError(
                    f"{name} is the pipeline's workspace, a volume that the pods of a job do not "
                    "have. Mount a claim in its place, by kubernetes.mount_pvc."
                )
            readers.encodable(name, text)
    return found


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in JSON, keys as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value:
            yield from _texts(item)
        for item in value.values() if isinstance(value, dict) else ():
            yield from _texts(item)


def filled_in(inputs: Collection[str]) -> set[str]:
    """Returns those of a component's inputs that its call fills in from a dict of artifacts.

    A dict that is given as NAME fills in NAME itself, `NAME_2` and so on, and `NAME_names`.
    """
    several = {name for name in inputs if _names_of(name) in inputs}
    return {_names_of(name) for name in several} | {
        slot for name in several for slot in _slots(inputs, name) if slot != name
    }


def _names_of(name: str) -> str:
    return f"{name}_names"


def _slots(inputs: Collection[str], name: str) -> list[str]:
    return [slot for slot in inputs if re.fullmatch(rf"{name}(_\d+)?", slot)]


def _spread(inputs: Mapping[str, InputSpec], given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the arguments, for a dict of artifacts those that it fills in."""
    for name, value in given.items():
        names = _names_of(name)
        if names not in inputs or not isinstance(value, Mapping):
            yield name, value
            continue
        slots = _slots(inputs, name)
        present = {key: artifact for key, artifact in value.items() if artifact is not None}
        if len(present) > len(slots):
            raise InputError(
                f"{name} has {len(present)} entries, {', '.join(map(str, present))}; it may have "
                f"{len(slots)}. Put several into one artifact, or hand over URIs, as in "
                "hyperparameters."
            )
        if present:
            yield names, [*present]
        for slot, (key, artifact) in zip(slots, present.items(), strict=False):
            yield slot, _artifact(f"{name}[{key!r}]", artifact)


def _argument(name: str, value: Any, declared: InputSpec | None) -> Any:
    if declared is None:
        # KFP says that it does not know the name.
        return value
    if not is_parameter_type(declared.type):
        return _artifact(name, value)
    kind = get_parameter_type_name(declared.type)
    if isinstance(value, PipelineChannel):
        return f"{value}" if kind == "STRING" and _is_number(value) else value
    plain = _plain(name, value)
    if kind not in _WITH_EMPTY:
        if isinstance(plain, str) and _CHANNEL.search(plain):
            raise InputError(f"{name} is a text with a value of the run in it; pass that alone.")
        if readers.is_unset(plain):
            return declared.default
    if kind == "STRUCT" and not isinstance(plain, dict):
        raise InputError(f'{name} is {_shown(name, value)}; write a dict, {{"key": "value"}}.')
    if kind == "LIST" and isinstance(value, os.PathLike):
        plain = [plain]
    read = readers.words if name in _COMMANDS else _READERS[kind]
    found = read(name, plain)
    if name in _OF_SCALARS:
        _check_scalars(name, found)
    return found


def _check_scalars(name: str, value: Any) -> None:
    """Refuses a list or dict in one of texts, numbers and truth values."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            of = f"{name}[{key!r}]"
            raise InputError(
                f"{of} must be a string, a number or true/false, not {_shown(name, item)}."
            )


def _is_number(channel: PipelineChannel) -> bool:
    """Whether it is a number, for which KFP takes a text with just it."""
    # KFP compiles none of these within a text.
    if isinstance(channel, OneOfMixin | Collected | LoopArgumentVariable):
        return False
    kind = channel.channel_type
    return is_parameter_type(kind) and get_parameter_type_name(kind) in _NUMBERS


def _artifact(name: str, value: Any) -> Any:
    if isinstance(value, PipelineTask):
        raise InputError(_not_an_output(name, value))
    if isinstance(value, PipelineChannel) and not isinstance(value, PipelineParameterChannel):
        return value
    raise InputError(
        f"{name} is {_shown(name, value)}, where an artifact belongs: an output of a task or of "
        "dsl.importer, or for dataset a dict of these by name. Hand a URI over as a parameter, as "
        "in hyperparameters."
    )


def _plain(name: str, value: Any) -> Any:
    """Returns a value as JSON has it, with what the run makes in it as it is.

    Raises InputError: KFP could not compile it, or would hand on something else.
    """
    match value:
        case PipelineTask():
            raise InputError(_not_an_output(name, value))
        case PipelineChannel():
            return _within(name, value)
        case str():
            return _text(name, str.__str__(value))
        case os.PathLike():
            return _text(name, os.fspath(value))
        case bool():
            return value
        case Integral():
            return int(value)
        case Real():
            return _finite(name, float(value))
        case list() | tuple():
            return [_plain(f"{name}[{i}]", item) for i, item in enumerate(value)]
        case Mapping():
            return {
                _key(name, key): _plain(f"{name}[{key!r}]", item) for key, item in value.items()
            }
        case None:
            raise InputError(f"{name} is None, which KFP cannot hand on; leave it out.")
    raise InputError(f"{name} is {_shown(name, value)}, which no JSON holds.")


def _finite(name: str, number: float) -> float:
    if not math.isfinite(number):
        raise InputError(f"{name} is {number}, which no JSON holds; write it as a string.")
    return number


def _within(name: str, channel: PipelineChannel) -> PipelineChannel:
    """Returns what the run makes, which is within a dict or list, if KFP can put it there."""
    if isinstance(channel, OneOfMixin | Collected):
        kind = type(channel).__name__.removesuffix("Parameter").removesuffix("Artifact")
        raise InputError(
            f"{name} is a dsl.{kind}, which KFP puts into no dict or list. {_OF_ITS_OWN}"
        )
    _check_type(name, channel.task_name, channel.name, channel.channel_type)
    return channel


def _text(name: str, text: str) -> str:
    if _TASK_AS_TEXT in text:
        raise InputError(f"{name} is a text with a task in it; put the task's .output there.")
    _check_literal(name, text)
    for task, output, kind in _CHANNEL.findall(text):
        _check_type(name, task, output, kind)
    return text


def _check_literal(name: str, text: str) -> None:
    found = _PLACEHOLDER.search(text)
    if found:
        raise InputError(
            f"{name} holds {found[0]!r}, which KFP takes for a placeholder of its own wherever it "
            "finds one: no step is handed it as it is. Leave it out, put the text into a file, or "
            "pass the parameter or output itself, whose value is wanted."
        )


def _check_type(name: str, task: str | None, output: str, kind: Any) -> None:
    what = _made(task, output)
    if _PART in output:
        raise InputError(
            f"{name} holds the part {output.rpartition(_PART)[2]!r} of a loop's item, which KFP "
            f"hands on only as the whole of an input. {_OF_ITS_OWN}"
        )
    if not is_parameter_type(kind):
        raise InputError(
            f"{name} holds {what}, an artifact, and KFP would hand on no value. Pass it "
            "as an input that takes an artifact: pytorch_job(dataset=…), and write {dataset} here; "
            "or have the task return its URI as a further output, of type str, and put that here."
        )
    root = name.partition("[")[0]
    found = _JSON_TYPES.get(get_parameter_type_name(kind))
    if found:
        raise InputError(
            f"{name} holds {what}, a {found}: KFP would put its quotation marks as they are into "
            "the JSON of the step's inputs, and the step would not start. Have a component make "
            f"the whole of {root}, and pass its output as {root}."
        )


def _made(task: str | None, output: str) -> str:
    return f"output {output!r} of task {task}" if task else f"the pipeline's {output!r}"


def _key(name: str, key: Any) -> str:
    if not isinstance(key, str):
        raise InputError(f"{name} has the key {key!r}; keys must be strings.")
    _check_literal(f"a key of {name}", key)
    if _CHANNEL.search(key):
        raise InputError(
            f"{name} has a key with a value of the run in it, which KFP would hand on as the "
            f"literal {key!r}. Such a value may only be a value."
        )
    return key


def _not_an_output(name: str, task: PipelineTask) -> str:
    outputs = " or ".join(f"its .outputs[{output!r}]" for output in task.outputs)
    return f"{name} is the task {task.name}; write {outputs or 'an output of another task'}."


def _shown(name: str, value: Any) -> str:
    if isinstance(value, PipelineChannel):
        return _made(value.task_name, value.name)
    kind = f"a {type(value).__name__}"
    hidden = name.partition("[")[0] == _CONFIDENTIAL
    return kind if hidden else f"{cut(repr(value), _SHOWN)} ({kind})"
