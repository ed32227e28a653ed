"""Every sample once an epoch, with any number of workers and after any failure: torchdata's StatefulDataLoader.

The sampler divides each epoch into global batches of one size, and every rank takes its share. The loader's state is
the number of batches handed out, without those that its processes have prefetched. So it is the same on every rank and
with any number of ranks, and all ranks load rank 0's. One checkpoint file has model, optimizer and loader, so a step
counts either with its samples or not at all.
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

SAMPLES, GLOBAL_BATCH = 48, 4


class Numbered(Dataset[tuple[int, Tensor]]):
    """Samples with their number."""

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.randn(8, generator=torch.Generator().manual_seed(index), dtype=torch.float64)


class ElasticBatches(Sampler[list[int]]):
    """Sampler of this rank's share of each global batch. An epoch's order depends only on the epoch's number."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.epoch = rank, world_size, 0

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        for first in range(0, SAMPLES, GLOBAL_BATCH):
            yield order[first + self.rank : first + GLOBAL_BATCH : self.world_size]


def save(path: str, state: dict[str, Any]) -> None:
    """Replace the checkpoint in one step."""
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)


def train(args: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    assert GLOBAL_BATCH % world_size == 0, "equal shares, or DDP's mean over ranks is not the mean over samples"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = ElasticBatches(rank, world_size)
    loader = StatefulDataLoader(Numbered(), batch_sampler=batches, num_workers=args.loader_workers)
    epoch = step = 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        epoch, step = saved["epoch"], saved["step"]
    ddp = DistributedDataParallel(model)
    for batches.epoch in range(epoch, args.epochs):
        for numbers, inputs in loader:
            loss = nn.functional.mse_loss(ddp(inputs), inputs.prod(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            batch: list[Any] = [None] * world_size
            dist.all_gather_object(batch, (numbers.tolist(), loss.item()))
            mean = sum(loss for _, loss in batch) / world_size
            samples = sorted(number for numbers, _ in batch for number in numbers)
            print(f"epoch={batches.epoch} step={step} rank={rank} of {world_size} loss={mean!r} samples={samples}")
            weights, moments = model.state_dict(), optimizer.state_dict()
            state = {"model": weights, "optimizer": moments, "loader": loader.state_dict()}
            save(args.checkpoint, state | {"epoch": batches.epoch, "step": step})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", default="sampler.pt")
    parser.add_argument("--loader-workers", type=int, default=2)
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
