"""Trains a regression on one process and saves its weights to ./out."""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from kfp_pytorch.training import script

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--out", type=Path, default=Path("./out"))
args = parser.parse_args()

torch.manual_seed(0)
inputs = torch.rand(256, 4)
targets = inputs @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

checkpoint = script.latest_checkpoint()
if checkpoint:
    model.load_state_dict(checkpoint.load())
for epoch in range(checkpoint.step if checkpoint else 0, args.epochs):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    script.report({"loss": loss.item()}, step=epoch + 1)
    script.save_checkpoint(model.state_dict(), step=epoch + 1)

script.export(model, inputs[:4])
args.out.mkdir(parents=True, exist_ok=True)
torch.save(model.state_dict(), args.out / "model.pt")
(args.out / "metrics.json").write_text(json.dumps({"loss": loss.item()}))
