"""Trains a classifier with DeepSpeed's engine; deepspeed or torchrun starts it."""

import argparse

import deepspeed
import torch
from torch import nn

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(1024, 20)
    labels = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        training_data=torch.utils.data.TensorDataset(inputs, labels),
        config={"train_micro_batch_size_per_gpu": 64},
    )
    for epoch in range(args.epochs):
        for batch, expected in loader:
            outputs = engine(batch.to(engine.device))
            loss = nn.functional.cross_entropy(outputs, expected.to(engine.device))
            engine.backward(loss)
            engine.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
        engine.save_checkpoint(f"out/{epoch}")
