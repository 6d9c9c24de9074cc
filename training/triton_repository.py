"""An exported program as ONNX, in a model repository of Triton.

    NAME/config.pbtxt
    NAME/1/model.onnx        with model.onnx.data beside it from about 1.5 GB on

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_repository.md
"""

from __future__ import annotations

import importlib.util
import json
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_pytorch.training.errors import ConfigError, ExportError

if TYPE_CHECKING:
    import torch

# What `torch.onnx` makes ONNX with.
PACKAGE = "onnxscript"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
# How many inputs Triton puts together at most, and how long it waits for them.
LARGEST_BATCH = 64
_DELAY_US = 1000
_LINES = 12


def check_name(name: str) -> None:
    """Refuses a name that no model of Triton can have, or where nothing makes ONNX here.

    Raises ConfigError.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the model's name for Triton is {name!r}; it is a folder's and part of a URL: at most "
            "64 letters, digits, '-', '_' and '.'"
        )
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"an export for Triton needs the package {PACKAGE}, which this image does not have: "
            "install kfp-pytorch[onnx], or leave the model's name for Triton out"
        )


def write(
    folder: Path,
    name: str,
    program: torch.export.ExportedProgram,
    inputs: list[dict[str, Any]],
    outputs: list[dict[str, Any]],
) -> None:
    """Writes a repository of one model.

    `inputs`, `outputs`: as in `model.json`, the batch first. Raises ExportError: the program has
    something that ONNX does not.
    """
    import torch

    names = [[each["name"] for each in part] for part in (inputs, outputs)]
    version = folder / name / "1"
    version.mkdir(parents=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            onnx = torch.onnx.export(
                program, dynamo=True, verbose=False, input_names=names[0], output_names=names[1]
            )
            if onnx is None:
                raise ExportError("torch.onnx made nothing of the model")
            onnx.save(version / "model.onnx")
    except ExportError:
        raise
    except Exception as error:
        # torch raises errors of many kinds, with pages of text.
        words = "\n".join(str(error).strip().splitlines()[:_LINES])
        raise ExportError(
            f"the model cannot be exported as ONNX for Triton ({type(error).__name__}): {words}\n"
            "Nothing was exported. Start it again without the model's name for Triton, to export "
            "for this project's own predictor alone: it continues from its last checkpoint, if it "
            "wrote one."
        ) from error
    (folder / name / "config.pbtxt").write_text(config(name, inputs, outputs), encoding="utf-8")


def config(name: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> str:
    """Returns the model's configuration, as text of protobuf."""
    return "\n".join(
        [
            f"name: {json.dumps(name)}",
            'backend: "onnxruntime"',
            f"max_batch_size: {LARGEST_BATCH}",
            *(_tensor("input", each) for each in inputs),
            *(_tensor("output", each) for each in outputs),
            f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY_US} }}",
            "",
        ]
    )


def _tensor(kind: str, about: dict[str, Any]) -> str:
    """A tensor without its first dimension, which is the batch."""
    kinds = {"BYTES": "TYPE_STRING"}
    datatype = kinds.get(about["datatype"], f"TYPE_{about['datatype']}")
    name, dims = json.dumps(about["name"]), [int(size) for size in about["shape"][1:]]
    # An input that has nothing but the batch is reshaped by Triton.
    shape = f"dims: {dims}" if dims else "dims: [1] reshape { shape: [] }"
    return f"{kind} {{ name: {name} data_type: {datatype} {shape} }}"
