"""A script with `@record` whose last rank fails on the way: `recorded.py STEPS FAIL_AT`."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


class DataIsBroken(Exception):
    """What a training script may come across."""


def train_step(step: int, weight: torch.Tensor) -> torch.Tensor:
    gradient = torch.sin(weight * (dist.get_rank() + 1) + step)
    dist.all_reduce(gradient)
    return weight - gradient / 10


@record
def main() -> None:
    steps, fail_at = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    weight = torch.ones(4)
    for step in range(steps):
        if step == fail_at and dist.get_rank() == dist.get_world_size() - 1:
            raise DataIsBroken(f"sample {step} of rank {dist.get_rank()} has no label")
        weight = train_step(step, weight)
        print(f"rank {dist.get_rank()} step {step} loss {weight.square().sum().item()!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
