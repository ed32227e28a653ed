"""PyTorch Lightning: its `Trainer` finds workers that are already running, as under torchrun, and continues from
`last.ckpt`.

The script passes the size of the run from the launcher: `LOCAL_WORLD_SIZE` workers on `GROUP_WORLD_SIZE` nodes.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Product(lightning.LightningModule):
    """Learns to multiply eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        (inputs,) = batch
        self.last_loss = nn.functional.mse_loss(self.net(inputs), inputs.prod(dim=1, keepdim=True))
        return self.last_loss

    def on_train_epoch_end(self) -> None:
        print(f"epoch={self.current_epoch} rank={self.global_rank} of {self.trainer.world_size} "
              f"loss={self.last_loss.item()!r}")  # fmt: skip

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--epochs", type=int, default=4, metavar="N", help="train for N epochs in all (default: %(default)s)"
    )
    parser.add_argument("--folder", default="lightning", help="save checkpoints in this folder (default: %(default)s)")
    args = parser.parse_args()
    lightning.seed_everything(0)
    loader = DataLoader(TensorDataset(torch.randn(96, 8)), batch_size=12, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        callbacks=[ModelCheckpoint(args.folder, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    print(f"started by {type(trainer.strategy.cluster_environment).__name__}")
    newest = f"{args.folder}/last.ckpt"
    trainer.fit(Product(), loader, ckpt_path=newest if os.path.exists(newest) else None)


if __name__ == "__main__":
    main()
