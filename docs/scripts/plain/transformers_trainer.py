"""Trains a small BERT with Transformers' Trainer; torchrun starts it."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sequences(Dataset):
    """Sequences of tokens, labelled by whether the first is above 32."""

    def __init__(self, samples, seed):
        chance = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 64, (samples, 12), generator=chance)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": int(self.tokens[index, 0] > 32)}


def accuracy(evaluated):
    return {"accuracy": float((evaluated.predictions.argmax(-1) == evaluated.label_ids).mean())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=64, intermediate_size=64, max_position_embeddings=16, **sizes)
    model = BertForSequenceClassification(config)
    training = TrainingArguments(
        output_dir="out",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=32,
        learning_rate=0.003,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
    )
    trainer = Trainer(
        model,
        training,
        train_dataset=Sequences(512, seed=0),
        eval_dataset=Sequences(128, seed=1),
        compute_metrics=accuracy,
    )
    trainer.train()
    trainer.save_model()
