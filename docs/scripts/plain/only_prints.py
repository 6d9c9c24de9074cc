"""Trains a small model and prints its loss."""

import torch

torch.manual_seed(0)
inputs = torch.linspace(-1, 1, 64).unsqueeze(1)
targets = torch.sin(3 * inputs)
model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(10):
    for _ in range(20):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())
