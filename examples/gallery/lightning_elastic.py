"""PyTorch Lightning with any number of workers, each sample once an epoch: `node_agent.data`.

Lightning saves the state of a loader that has one, also in the middle of an epoch, and restores it with `ckpt_path`.
"""

import argparse
import os
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from node_agent.data import ElasticLoader, ElasticSampler

SAMPLES, GLOBAL_BATCH = 26, 8


class Product(lightning.LightningModule):
    """Learns to multiply eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        self.numbers, inputs = batch
        loss = nn.functional.mse_loss(self.net(inputs), inputs.prod(dim=1, keepdim=True))
        self.last_loss = loss * self.trainer.train_dataloader.weight
        return self.last_loss

    def on_train_batch_end(self, *args: object) -> None:
        shares: list[Any] = [None] * self.trainer.world_size
        weight = self.trainer.train_dataloader.weight
        dist.all_gather_object(shares, (self.numbers.tolist() if weight else [], self.last_loss.item()))
        mean = sum(loss for _, loss in shares) / len(shares)
        samples = sorted(number for numbers, _ in shares for number in numbers)
        print(f"step={self.global_step} rank={self.global_rank} of {len(shares)} loss={mean!r} samples={samples}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--epochs", type=int, default=3, metavar="N", help="train for N epochs in all (default: %(default)s)"
    )
    parser.add_argument("--folder", default="lightning", help="save checkpoints in this folder (default: %(default)s)")
    args = parser.parse_args()
    lightning.seed_everything(0)
    ranks, nodes = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    data = TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 8))
    loader = ElasticLoader(DataLoader(data, batch_sampler=ElasticSampler(SAMPLES, GLOBAL_BATCH), num_workers=2))
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        devices=ranks,
        num_nodes=nodes,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        callbacks=[ModelCheckpoint(args.folder, save_last=True, every_n_train_steps=2)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = f"{args.folder}/last.ckpt"
    trainer.fit(Product(), loader, ckpt_path=newest if os.path.exists(newest) else None)


if __name__ == "__main__":
    main()
