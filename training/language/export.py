"""The export of a language model: bytes in, the next byte out, as a classifier of 256 classes.

One process makes it from the last checkpoint, whatever plan the model was trained under.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from kfp_pytorch.training.checkpoint import tensor_files
from kfp_pytorch.training.checkpoint.catalog import Checkpoint
from kfp_pytorch.training.checkpoint.index import read_index
from kfp_pytorch.training.errors import CheckpointError
from kfp_pytorch.training.export import description, publish
from kfp_pytorch.training.image import models
from kfp_pytorch.training.language.text import VOCABULARY, ByteText
from kfp_pytorch.training.language.transformer import Transformer, TransformerConfig
from kfp_pytorch.training.storage.job_folder import Folder

# Of parameters: one process holds them twice.
LARGEST = 500_000_000
_SAMPLES = 4
_SAMPLE_BYTES = 24


class NextByte(nn.Module):
    """Predicts the next byte."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the byte after each row of bytes."""
        model = self.model
        if model.embedding is None or model.norm is None or model.head is None:
            raise TypeError("one stage of a pipeline is no model")
        x = model.embedding(tokens)
        for block in model.blocks.values():
            x = block(x, model.cos, model.sin)
        logits: Tensor = model.head(model.norm(x[:, -1]))
        return logits[:, :VOCABULARY]


def write_export(
    folder: Folder, shape: TransformerConfig, newest: Checkpoint | None, held_out: ByteText
) -> dict[str, Any]:
    """Exports the model of a checkpoint, if one process can hold it.

    Returns `export` and `samples` of the termination message, or `no_export` with the reason.
    Raises CheckpointError: without a checkpoint, or one of other weights. Raises StorageError.
    """
    if shape.parameters > LARGEST:
        reason = (
            f"the model has {shape.parameters} parameters, and only those of up to {LARGEST} are "
            "exported; its weights are in the newest checkpoint"
        )
        return {"export": None, "no_export": reason}
    if newest is None:
        raise CheckpointError(f"{folder.uri} has no checkpoint to export")
    model = NextByte(load(shape, newest)).eval()
    sizes = {0: Dim("batch", min=1), 1: Dim("bytes", min=1, max=shape.seq_len)}
    example = torch.zeros(2, min(3, shape.seq_len), dtype=torch.int64)
    with torch.no_grad():
        program = torch.export.export(model, (example,), dynamic_shapes={"tokens": sizes})
    length = min(_SAMPLE_BYTES, shape.seq_len)
    return publish(
        folder,
        program,
        lambda loaded: _samples(loaded, held_out, length),
        _short_form(),
        {"in_program": True, "values": [0, VOCABULARY - 1], "longest": shape.seq_len},
    )


def load(shape: TransformerConfig, found: Checkpoint) -> Transformer:
    """The whole model of a checkpoint, on the CPU, whatever plan wrote it."""
    model = Transformer(shape)
    index = read_index(found.folder, found.path, found.meta["files"])
    weights = {name: torch.empty_like(value) for name, value in model.state_dict().items()}
    tensor_files.read(found.folder, found.path, index, {"model": weights}, None)
    models.load_weights(model, weights)
    return model


def _samples(program: nn.Module, held_out: ByteText, length: int) -> list[dict[str, Any]]:
    """Pieces of held-out text, each with the next byte that the exported program predicts."""
    count = min(_SAMPLES, len(held_out.data) // length)
    pieces = held_out.data[: count * length].view(count, length).long()
    with torch.no_grad():
        predictions = program(pieces).argmax(dim=1)
    return [
        {"instance": piece.tolist(), "prediction": int(prediction)}
        for piece, prediction in zip(pieces, predictions, strict=True)
    ]


def _short_form() -> dict[str, Any]:
    return description(
        [{"name": "tokens", "shape": [-1, -1], "datatype": "INT64"}],
        [{"name": "logits", "shape": [-1, VOCABULARY], "datatype": "FP32"}],
        [_name(byte) for byte in range(VOCABULARY)],
    )


def _name(byte: int) -> str:
    """A byte in ASCII, others in hexadecimal."""
    return chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"
