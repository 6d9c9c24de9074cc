"""Trains a classifier in a loop of its own with Accelerate; `accelerate launch` starts it."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(0)
    inputs = torch.randn(1024, 20)
    labels = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        correct = 0
        for batch, expected in loader:
            outputs = model(batch)
            loss = nn.functional.cross_entropy(outputs, expected)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            right = accelerator.gather_for_metrics(outputs.argmax(1) == expected)
            correct += right.sum().item()
        accuracy = correct / len(inputs)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.4f}")
        accelerator.save_state("out/state")
    accelerator.end_training()
