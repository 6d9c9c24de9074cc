"""A tiny language model and examples for it, made on the spot: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_END, _PAD = "<|end|>", "<|pad|>"
_SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
_LENGTH = 128


def examples() -> list[dict[str, str]]:
    """Sums of numbers below 20, each as `prompt` and `completion`."""
    return [
        {"prompt": f"{a} + {b} =", "completion": f" {a + b}"} for a in range(20) for b in range(20)
    ]


def tokenizer() -> Any:
    """A tokenizer of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, _END, _PAD])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=_END, pad_token=_PAD, model_max_length=_LENGTH
    )


def model(tokens: Any, seed: int) -> Any:
    """A Llama of two layers with random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokens),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=_LENGTH,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        **_SIZES,
    )
    return LlamaForCausalLM(config)
