"""Training that continues from its checkpoint after any failure, with any number of workers.

`--crash-after N`: rank 1 is killed after that epoch in the first round. `--wait-after N`: after that epoch rank 1
reports that it waits until it is ended. The others wait for it in a collective, as in training. `--fail-after N`: rank
1 raises an exception after that epoch, which `@record` writes to a file.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = "checkpoint.pt"
BATCH = 48


class DataIsBroken(Exception):
    """An error of a training script."""


class State:
    """State in a checkpoint."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        self.epoch = 0

    def load(self) -> None:
        if os.path.exists(CHECKPOINT):
            saved = torch.load(CHECKPOINT)
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.epoch = saved["epoch"]

    def save(self) -> None:
        saved = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}
        torch.save(saved, f"{CHECKPOINT}.new")
        os.replace(f"{CHECKPOINT}.new", CHECKPOINT)


def train_epoch(state: State, model: nn.Module) -> float:
    """Take one step on the epoch's batch, which the workers share. Return this worker's loss."""
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(state.epoch))
    mine = inputs[dist.get_rank() :: dist.get_world_size()]
    loss = nn.functional.mse_loss(model(mine), mine.prod(dim=1, keepdim=True))
    state.optimizer.zero_grad()
    loss.backward()
    state.optimizer.step()
    state.epoch += 1
    return loss.item()


def train(args: argparse.Namespace) -> None:
    state, rank = State(), dist.get_rank()
    state.load()
    print(f"rank {rank} of {dist.get_world_size()} begins at epoch {state.epoch}")
    model = DistributedDataParallel(state.model)
    while state.epoch < args.epochs:
        loss = train_epoch(state, model)
        if rank == 0:
            state.save()
        dist.barrier()
        print(f"rank {rank} epoch {state.epoch} loss {loss!r}")
        if state.epoch == args.crash_after and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if state.epoch == args.wait_after and rank == 1:
            print("rank 1 waits")
            signal.pause()
        if state.epoch == args.fail_after and rank == 1:
            raise DataIsBroken(f"batch {state.epoch} of rank {rank} has no label")


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--crash-after", type=int)
    parser.add_argument("--wait-after", type=int)
    parser.add_argument("--fail-after", type=int)
    dist.init_process_group("gloo")
    train(parser.parse_args())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
