"""Exports a script's model as the predictor serves it: one input, one output, batches of any size.

What the predictor would refuse at its start is refused here, by the same rules.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_pytorch.training import export as exports
from kfp_pytorch.training import triton_repository
from kfp_pytorch.training.errors import ExportError
from kfp_pytorch.training.script import place, result

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# The protocol's names of the types that the predictor serves, by torch's.
_DATATYPES = {
    **{f"torch.float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    **{f"torch.int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    "torch.uint8": "UINT8",
}
# What is around a model, and where it has the model.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "DeepSpeedEngine": "module",
    "OptimizedModule": "_orig_mod",
}
_OLDEST_TORCH = "2.6"
_MOST_SAMPLES = 8
# Numbers in all instances of `samples.json`: about 4 MB.
_MOST_NUMBERS = 200_000
_NO_LIMIT = 2**31
_LONGEST_NAME = 128
_FIRST = (
    "The first dimension of the example input must be the batch: x[None] makes one of one input."
)


def export(
    model: nn.Module,
    example_inputs: Tensor | Mapping[str, Tensor],
    *,
    output: str = "",
    classes: Sequence[str] = (),
    dynamic: Mapping[int, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    triton_name: str = "",
) -> str:
    """Writes the model to the job's folder, with all that serving needs.

    Rank 0 does it, and the others return at once. The model stays as it is: a copy on the CPU, in
    evaluation mode, is exported by torch.export, for batches of any size.

    Args:
        model: A model of one tensor, or one that takes the others by default; without DDP,
            DeepSpeed and torch.compile around it, or with them.
        example_inputs: A batch of real inputs, as a tensor or as `{"name": tensor}`. The first of
            them, with the model's answers, are the samples that `kserve_predict` checks.
        output: The output's name; of a model that returns several by name, the one to serve. It
            and the input's name have at most 128 characters.
        classes: The label of each class, if the output has a number for each.
        dynamic: Other dimensions of the input that are of any size, within limits, such as
            `{1: torch.export.Dim("length", min=1, max=512)}`.
        preprocessing: What the input is, for people: units, sizes, tokenizer.
        triton_name: The model's name in a repository of Triton, to which it is exported as ONNX,
            too; empty for none. This needs the package onnxscript.

    Returns:
        The path or URI of the export.

    Raises:
        ExportError: The model cannot be exported, or the predictor would not serve it.
        StorageError: The job's folder cannot be written to.
    """
    folder = place.job_folder()
    where = f"{folder.uri}/{exports.FOLDER}"
    if place.rank() != 0:
        return where
    import torch

    # By version, which torch's own kind of text compares so.
    if torch.__version__ < _OLDEST_TORCH:
        raise ExportError(
            f"torch {torch.__version__} exports programs that the predictor's torch cannot load: "
            f"train with torch {_OLDEST_TORCH} or later"
        )
    while type(model).__name__ in _WRAPPERS:
        model = getattr(model, _WRAPPERS[type(model).__name__])
    if triton_name:
        triton_repository.check_name(triton_name)
    about = _checked({**_longest(dynamic or {}), **(preprocessing or {})})
    name, batch = _input(model, example_inputs)
    by_name = name if isinstance(example_inputs, Mapping) else ""
    plain = _copied(model)
    with torch.no_grad():
        key, answer = _chosen(_answer(plain, batch, by_name), output)
        program = _traced(_served(plain, by_name, key), batch, dynamic or {})
    for each in (name, output or key):
        if len(each) > _LONGEST_NAME:
            raise ExportError(
                f"the name {each[:40]!r}… has {len(each)} characters; that of an input or output "
                f"has at most {_LONGEST_NAME}: give a shorter one"
            )
    inputs = {"name": name, "shape": _sizes(batch.shape, {0, *(dynamic or {})})}
    outputs = {"name": output or key or "output", "shape": _output_sizes(program, answer, batch)}
    labels = [str(label) for label in classes]
    if labels and list(answer.shape[1:]) != [len(labels)]:
        raise ExportError(
            f"there are {len(labels)} classes, and the output of one input has the shape "
            f"{list(answer.shape[1:])}; it must have one number for each class"
        )
    short = exports.description(
        [{**inputs, "datatype": _datatype("input", batch)}],
        [{**outputs, "datatype": _datatype("output", answer)}],
        labels,
    )
    result.keep_export(
        exports.publish(
            folder,
            program,
            lambda loaded: _samples(loaded, batch, bool(labels)),
            short,
            about,
            triton_name,
        )
    )
    place.say(f"wrote the export {where}")
    return where


def export_files(
    path: str | os.PathLike[str], *, model_format: str, versions: Mapping[str, str] | None = None
) -> str:
    """Copies a model that another library has saved to the job's folder, to be served as it is.

    Rank 0 does it, and the others return at once.

    Args:
        path: The folder that the library saved, such as of Transformers' `save_pretrained`.
        model_format: Its format, as KServe's runtimes name it, such as `huggingface`.
        versions: The versions of the libraries that it was made with, by their names.

    Returns:
        The path or URI of the export.

    Raises:
        ExportError: There is no folder with files, or one has the name of the description.
        StorageError: The job's folder cannot be written to.
    """
    folder, files = place.job_folder(), Path(path)
    where = f"{folder.uri}/{exports.FOLDER}"
    if place.rank() != 0:
        return where
    if not files.is_dir() or not any(each.is_file() for each in files.rglob("*")):
        raise ExportError(
            f"{files} is no folder with files: give the one that the model is saved in"
        )
    if (files / exports.MODEL).exists():
        raise ExportError(
            f"{files} has a file {exports.MODEL}, as the description of an export is called: give "
            "it another name"
        )
    short = {"format": model_format, "versions": dict(versions or {})}
    result.keep_export(exports.publish_files(folder, files, short))
    place.say(f"wrote the export {where}")
    return where


def _input(model: nn.Module, given: Any) -> tuple[str, Tensor]:
    """The name of the model's input, and the first examples."""
    import torch

    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule):
        raise ExportError(
            f"the model is a {type(model).__name__}, and torch.export takes a torch.nn.Module that "
            "is not of torch.jit: export the one that it was made of"
        )
    names = [*given] if isinstance(given, Mapping) else []
    values = list(given.values()) if isinstance(given, Mapping) else given
    tensors = [*values] if isinstance(values, (list, tuple)) else [values]
    if strange := [each for each in tensors if not isinstance(each, torch.Tensor)]:
        raise ExportError(
            f"the example input is a {type(strange[0]).__name__} and must be a tensor: "
            "torch.as_tensor(x) makes one of an array or of numbers"
        )
    if len(tensors) != 1:
        raise ExportError(
            f"there are {len(tensors)} example inputs ({', '.join(names) or 'without names'}), and "
            "the predictor serves models of one tensor: wrap the model in a torch.nn.Module that "
            "makes the others of it"
        )
    batch = tensors[0].detach().to("cpu")
    if batch.ndim < 1 or not batch.numel():
        raise ExportError(
            f"the example input has the shape {list(batch.shape)}; give a batch, its first "
            "dimension, of at least one input"
        )
    positional = [*inspect.signature(model.forward).parameters.values()][:1]
    named = [each.name for each in positional if each.kind is not each.VAR_POSITIONAL]
    count = max(1, min(_MOST_SAMPLES, _MOST_NUMBERS // batch[0].numel()))
    # To torch.export a batch of one is special.
    return (names or named or ["input"])[0], torch.cat([batch, batch])[
        : max(2, min(count, len(batch)))
    ]


def _copied(model: nn.Module) -> nn.Module:
    """A copy for evaluation whose tensors are on the CPU. Raises ExportError: they are sharded."""
    import torch
    from torch import nn

    # What a module keeps that is no weight, such as its last loss, may be on another device, too.
    kept = [each for module in model.modules() for each in vars(module).values()]
    tensors = [each for each in kept if isinstance(each, torch.Tensor)]
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if hasattr(tensor, "ds_tensor") or place.is_sharded(tensor):
            raise ExportError(
                "the model's weights are sharded over the ranks: load them whole into a model of "
                "its own, as of script.latest_checkpoint().load(), and export that"
            )
    try:
        for tensor in (*tensors, *model.parameters(), *model.buffers()):
            whole = tensor.detach().to("cpu")
            is_weight = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(whole, requires_grad=False) if is_weight else whole
        # A module of Lightning refers to its trainer, and by that to data and loggers.
        memo[id(getattr(model, "_trainer", None))] = None
        return copy.deepcopy(model, memo).eval()
    except Exception as error:
        raise ExportError(
            f"the model cannot be copied ({type(error).__name__}: {error}): export a "
            "torch.nn.Module that has the weights and nothing else"
        ) from error


def _checked(about: dict[str, Any]) -> dict[str, Any]:
    """What is told of the input. Raises ExportError: JSON cannot have it."""
    try:
        json.dumps(about, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ExportError(
            f"preprocessing cannot be written as JSON ({error}): give texts, finite numbers, and "
            "lists and dictionaries of them; x.tolist() makes them of an array"
        ) from error
    return about


def _answer(model: nn.Module, batch: Tensor, by_name: str) -> Any:
    """What a copy of the model makes of the examples. Raises ExportError: it fails."""
    try:
        return model(**{by_name: batch}) if by_name else model(batch)
    except Exception as error:
        raise ExportError(
            f"the model, in evaluation mode and on the CPU, fails for the example input of the "
            f"shape {list(batch.shape)} ({type(error).__name__}: {error}). {_FIRST}"
        ) from error


def _chosen(answer: Any, output: str) -> tuple[str, Tensor]:
    """The tensor to serve of what a model returns, and its name where it has one."""
    import torch

    if isinstance(answer, torch.Tensor):
        return "", answer
    if isinstance(answer, Mapping):
        tensors = {k: v for k, v in answer.items() if isinstance(v, torch.Tensor)}
        name = output or (next(iter(tensors)) if len(tensors) == 1 else "")
        if name in tensors:
            return name, tensors[name]
        raise ExportError(
            f"the model returns {', '.join(map(str, tensors)) or 'no tensor'}, and output is "
            f"{output!r}: name the one to serve"
        )
    raise ExportError(
        f"the model returns a {type(answer).__name__}, and the predictor serves one tensor: wrap "
        "the model in a torch.nn.Module that returns it"
    )


def _served(model: nn.Module, by_name: str, key: str) -> nn.Module:
    """A model of one tensor by position, which returns one tensor."""
    from torch import nn

    class Served(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Tensor) -> Any:
            answer = self.model(**{by_name: batch}) if by_name else self.model(batch)
            return answer[key] if key else answer

    return Served().eval()


def _traced(
    model: nn.Module, batch: Tensor, dynamic: Mapping[int, Any]
) -> torch.export.ExportedProgram:
    import torch

    sizes = {0: torch.export.Dim("batch", min=1), **dynamic}
    try:
        return torch.export.export(model, (batch,), dynamic_shapes=(sizes,), strict=False)
    except Exception as error:
        # torch raises errors of many kinds, with pages of text.
        words = "\n".join(str(error).strip().splitlines()[:12])
        raise ExportError(
            f"torch.export cannot export the model for batches of any size "
            f"({type(error).__name__}): {words}\n{_FIRST} A model may branch on the sizes of its "
            "input and on its values only as https://docs.pytorch.org/docs/stable/export.html says."
        ) from error


def _sizes(shape: Sequence[int], free: set[int]) -> list[int]:
    return [-1 if place_ in free else int(size) for place_, size in enumerate(shape)]


def _output_sizes(
    program: torch.export.ExportedProgram, answer: Tensor, batch: Tensor
) -> list[int]:
    """The output's shape, -1 where it depends on the input's."""
    nodes = {node.name: node for node in program.graph.nodes}
    shape = nodes[program.graph_signature.user_outputs[0]].meta["val"].shape
    free = {place_ for place_, size in enumerate(shape) if not isinstance(size, int)}
    if 0 not in free or answer.shape[0] != batch.shape[0]:
        raise ExportError(
            f"{len(batch)} inputs give an output of the shape {list(answer.shape)}; its first "
            "dimension must be the batch, as the input's is"
        )
    return _sizes(answer.shape, free)


def _datatype(what: str, tensor: Tensor) -> str:
    found = _DATATYPES.get(str(tensor.dtype))
    if found is None:
        raise ExportError(
            f"the {what} is {tensor.dtype}, which the predictor does not serve: it serves "
            f"{', '.join(_DATATYPES.values())}; convert it in the model, as with .float()"
        )
    return found


def _longest(dynamic: Mapping[int, Any]) -> dict[str, int]:
    """The largest size that the predictor may try, if one is stated."""
    limits = [getattr(dim, "max", None) for dim in dynamic.values()]
    stated = [limit for limit in limits if isinstance(limit, int) and limit < _NO_LIMIT]
    return {"longest": min(stated)} if stated else {}


def _samples(program: nn.Module, batch: Tensor, is_classifier: bool) -> list[dict[str, Any]]:
    """The examples with the answers of the exported program. Raises ExportError.

    None where the same input may have another answer when it is asked for again.
    """
    import torch

    with torch.no_grad():
        answers, one = program(batch), program(torch.zeros_like(batch[:1]))
        alone = torch.cat([program(batch[place_ : place_ + 1]) for place_ in range(len(batch))])
    if not (torch.isfinite(answers).all() and torch.isfinite(one).all()):
        raise ExportError(
            "the model's answer to the examples, or to an input of zeros, which the predictor "
            "begins with, is not finite"
        )
    if not _are_alike(answers, alone):
        place.say(
            "an input's answer differs when the model is asked again or for the input alone: it "
            "draws random numbers in evaluation mode, changes its own buffers, or computes over "
            "the whole batch, while the predictor makes batches of different requests. So the "
            "export has no samples, and kserve_predict needs `requests`"
        )
        return []
    known = answers.argmax(dim=1) if is_classifier else answers
    return [
        {"instance": row.tolist(), "prediction": prediction.tolist()}
        for row, prediction in zip(batch, known, strict=True)
    ]


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Whether they differ by no more than what the size of a batch changes in a sum."""
    import torch

    largest = float(one.abs().max())
    return torch.allclose(one.double(), other.double(), rtol=0.01, atol=0.01 * largest)
