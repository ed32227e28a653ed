"""Every sample once an epoch, with any number of workers and after any failure: `node_agent.data`.

The sampler deals each global batch to the ranks. The loader's state is what the loop has received, without what its
processes have prefetched. It is the same on every rank and with any number of ranks. One checkpoint has model,
optimizer and data, so a step counts either with its samples or not at all.

The last global batch of an epoch is smaller, and not every number of ranks divides a batch. `weight` makes the gradient
that of one process.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from node_agent.data import ElasticLoader, ElasticSampler

SAMPLES, GLOBAL_BATCH = 50, 8


class Numbered(Dataset[tuple[int, Tensor]]):
    """Samples with their number."""

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, torch.randn(8, generator=torch.Generator().manual_seed(index), dtype=torch.float64)


def save(path: str, state: dict[str, Any]) -> None:
    """Replace the checkpoint in one step."""
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)


def train(args: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = ElasticSampler(SAMPLES, GLOBAL_BATCH, rank=rank, world_size=world_size)
    loader = ElasticLoader(DataLoader(Numbered(), batch_sampler=batches, num_workers=args.loader_workers))
    step = 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]
    ddp = DistributedDataParallel(model)
    while (epoch := loader.epoch) < args.epochs:
        for numbers, inputs in loader:
            loss = loader.weight * nn.functional.mse_loss(ddp(inputs), inputs.prod(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            batch: list[Any] = [None] * world_size
            dist.all_gather_object(batch, (numbers.tolist() if loader.weight else [], loss.item()))
            mean = sum(loss for _, loss in batch) / world_size
            samples = sorted(number for numbers, _ in batch for number in numbers)
            print(f"epoch={epoch} step={step} rank={rank} of {world_size} loss={mean!r} samples={samples}")
            if step % args.save_every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(args.checkpoint, state | {"data": loader.state_dict(), "step": step})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--epochs", type=int, default=3, metavar="N", help="train for N epochs in all (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", default="sampler.pt", help="save into this file (default: %(default)s)")
    parser.add_argument(
        "--save-every", type=int, default=3, help="save after every N steps (default: %(default)s)", metavar="N"
    )
    parser.add_argument(
        "--loader-workers",
        type=int,
        default=2,
        metavar="N",
        help="load data in N processes of each rank (default: %(default)s)",
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
