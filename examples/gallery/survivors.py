"""No completed step is trained again: a worker that survives saves the last one when its round ends.

Every 100 steps rank 0 writes a checkpoint. If a worker or a node dies in between, `saved_by_survivors` writes the state
after the last completed step, and the next round continues from it. The folder may be shared, or each node's own: the
ranks agree on the newest state, and the rank that has it broadcasts it.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import node_agent

BATCH = 4
"""Samples of a step for each rank."""


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return this rank's samples of a step. They depend on the numbers of step and rank only."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64)
    return inputs, inputs.prod(dim=1, keepdim=True)


def newest_state(folder: str, checkpoint: str) -> dict[str, Any] | None:
    """Return the newest state that any rank can read, the same on all ranks. None if there is none."""
    saved = node_agent.newest_saved(folder)
    paths = ([saved.path] if saved else []) + ([checkpoint] if os.path.exists(checkpoint) else [])
    mine = max(map(torch.load, paths), key=lambda state: state["step"], default=None)
    steps: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(steps, mine["step"] if mine else 0)
    states = [mine]
    dist.broadcast_object_list(states, src=steps.index(max(steps)))
    return states[0]


def train(args: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def save(path: str, step: int) -> None:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)

    done = 0
    if state := newest_state(args.survivors, args.checkpoint):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
    ddp = DistributedDataParallel(model)
    with node_agent.saved_by_survivors(args.survivors, save) as survivor:
        for step in range(done + 1, args.steps + 1):
            inputs, targets = batch(step)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp(inputs), targets)
            loss.backward()
            with survivor.update(step):  # the state changes only here
                optimizer.step()
            node_agent.progress(step)
            dist.all_reduce(mean := loss.detach().clone())
            print(f"step={step} rank={rank} loss={mean.item() / dist.get_world_size()!r}")
            if step % args.checkpoint_every == 0 and rank == 0:
                save(f"{args.checkpoint}.new", step)
                os.replace(f"{args.checkpoint}.new", args.checkpoint)
                node_agent.progress(step, "checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=10, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=100,
        metavar="N",
        help="write a checkpoint after every N steps (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpoint",
        default="checkpoint.pt",
        help="save into this file, on a disk that all nodes share (default: %(default)s)",
    )
    parser.add_argument(
        "--survivors",
        default="survivors",
        help="let survivors save into this folder, shared or of this node (default: %(default)s)",
    )
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
