"""Fine-tunes a language model with LoRA, and exports it with the adapter merged into it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import trl
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from kfp_pytorch.training import script
from kfp_pytorch.training.fine_tune import arguments, data, made_up
from kfp_pytorch.training.fine_tune.arguments import Arguments
from kfp_pytorch.training.script.transformers import ReportCallback, latest_checkpoint

# How KServe names the format of the export.
FORMAT = "huggingface"


def main() -> None:
    """Trains, evaluates and exports."""
    given = arguments.read()
    train, held_out = data.load(given.data, given.held_out, given.seed)
    model, tokenizer = _load(given)
    with tempfile.TemporaryDirectory(prefix="kfp-pytorch-fine-tune-") as scratch:
        trainer = SFTTrainer(
            model,
            _settings(given, scratch),
            train_dataset=train,
            eval_dataset=held_out,
            processing_class=tokenizer,
            peft_config=LoraConfig(
                r=given.lora_rank,
                lora_alpha=given.lora_alpha,
                lora_dropout=given.lora_dropout,
                target_modules="all-linear",
                task_type="CAUSAL_LM",
            ),
            callbacks=[ReportCallback()],
        )
        trainer.train(resume_from_checkpoint=latest_checkpoint())
        _export(trainer, tokenizer, Path(scratch, "merged"))


def _load(given: Arguments) -> tuple[Any, Any]:
    if not given.model:
        tokenizer = made_up.tokenizer()
        return made_up.model(tokenizer, given.seed), tokenizer
    dtype = torch.bfloat16 if _has_bf16() else torch.float32
    # No code of a model's repository is run, and no weights that are pickled are read.
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=dtype, use_safetensors=True)
    return model, AutoTokenizer.from_pretrained(given.model)


def _has_bf16() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported()


def _settings(given: Arguments, scratch: str) -> SFTConfig:
    gpu = torch.cuda.is_available()
    return SFTConfig(
        output_dir=scratch,
        num_train_epochs=given.epochs,
        per_device_train_batch_size=given.batch_size,
        per_device_eval_batch_size=given.batch_size,
        learning_rate=given.learning_rate,
        max_length=given.max_length,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not gpu,
        bf16=_has_bf16(),
        gradient_checkpointing=gpu,
        # All of an adapter is in each step.
        ddp_find_unused_parameters=False,
        seed=given.seed,
    )


def _export(trainer: Any, tokenizer: Any, folder: Path) -> None:
    """Exports the model as it is served: the weights of the adapter merged into it."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if script.rank() == 0:
        model.merge_and_unload().save_pretrained(folder, safe_serialization=True)
        tokenizer.save_pretrained(folder)
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft, trl)}
    script.export_files(folder, model_format=FORMAT, versions=versions)


if __name__ == "__main__":
    main()
