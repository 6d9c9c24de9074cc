"""Trains a LightningModule; torchrun starts it, with as many processes as --devices says."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        outputs = self(batch[0])
        loss = nn.functional.cross_entropy(outputs, batch[1])
        self.log("val_loss", loss, sync_dist=True)
        accuracy = (outputs.argmax(1) == batch[1]).float().mean()
        self.log("val_accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loader(samples, seed, **options):
    inputs = torch.randn(samples, 20, generator=torch.Generator().manual_seed(seed))
    labels = (inputs[:, :10].sum(1) > inputs[:, 10:].sum(1)).long()
    return DataLoader(TensorDataset(inputs, labels), batch_size=64, **options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--num-nodes", type=int, default=1)
    args = parser.parse_args()
    lightning.seed_everything(0)
    model = Classifier()
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        devices=args.devices,
        num_nodes=args.num_nodes,
        enable_progress_bar=False,
    )
    trainer.fit(model, loader(1024, seed=0, shuffle=True), loader(256, seed=1))
