"""Trains a classifier on all ranks with DistributedDataParallel; torchrun starts it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_train_objs():
    inputs = torch.randn(2048, 20, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
    return TensorDataset(inputs, labels), model, torch.optim.SGD(model.parameters(), lr=0.1)


def main(epochs, snapshot_path="snapshot.pt"):
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    dataset, model, optimizer = load_train_objs()
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    model, first = model.to(device), 0
    if os.path.exists(snapshot_path):
        snapshot = torch.load(snapshot_path, map_location=device)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["epochs"]
    model = DistributedDataParallel(model)
    for epoch in range(first, epochs):
        loader.sampler.set_epoch(epoch)
        correct = 0
        for inputs, labels in loader:
            outputs, labels = model(inputs.to(device)), labels.to(device)
            loss = nn.functional.cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (outputs.argmax(1) == labels).sum().item()
        accuracy = correct / len(loader.sampler)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        if dist.get_rank() == 0:
            print(f"Epoch {epoch} | loss {loss.item():.4f} | accuracy {accuracy:.4f}")
            torch.save({**state, "epochs": epoch + 1}, snapshot_path)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    main(parser.parse_args().epochs)
