"""A linear model trained with DistributedDataParallel, in the style of the tutorials: EPOCHS SAVE_EVERY.

Every rank prints its loss each epoch, and in the end a digest of its weights. Rank 0 saves a snapshot, from which a
later run goes on.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # early, or it holds the group, and gloo's threads, at the interpreter's end
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SNAPSHOT = "snapshot.pt"


class Trainer:
    """One worker's replica and its share of the samples."""

    def __init__(self, samples: DataLoader[tuple[Tensor, ...]], save_every: int) -> None:
        self.rank = int(os.environ["RANK"])
        self.samples = samples
        self.save_every = save_every
        model = nn.Linear(20, 1)
        self.epochs_run = self.load_snapshot(model)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def load_snapshot(self, model: nn.Module) -> int:
        if not os.path.exists(SNAPSHOT):
            return 0
        snapshot = torch.load(SNAPSHOT)
        model.load_state_dict(snapshot["model"])
        print(f"[rank {self.rank}] goes on after epoch {snapshot['epochs_run']}")
        return int(snapshot["epochs_run"])

    def save_snapshot(self) -> None:
        torch.save({"model": self.model.module.state_dict(), "epochs_run": self.epochs_run}, SNAPSHOT)
        print(f"[rank {self.rank}] saved {SNAPSHOT} after epoch {self.epochs_run}")

    def train(self, epochs: int) -> None:
        while self.epochs_run < epochs:
            loss = self.run_epoch()
            self.epochs_run += 1
            print(f"[rank {self.rank}] epoch {self.epochs_run}, {len(self.samples)} steps, loss {loss!r}")
            if self.rank == 0 and self.epochs_run % self.save_every == 0:
                self.save_snapshot()

    def run_epoch(self) -> float:
        self.samples.sampler.set_epoch(self.epochs_run)  # type: ignore[attr-defined]
        total = 0.0
        for inputs, targets in self.samples:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.samples)


def make_samples(batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    inputs = torch.rand(512, 20)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True) + torch.randn(512, 1) / 10)
    return DataLoader(data, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(data))


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(1)
    trainer = Trainer(make_samples(args.batch_size), args.save_every)
    trainer.train(args.epochs)
    print(f"[rank {trainer.rank}] weights {digest(trainer.model)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()
