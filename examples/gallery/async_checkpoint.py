"""A checkpoint that is written during the training, as in torchtitan: `async_save` of one `Stateful`.

`async_save` copies the state and returns, and a thread writes it. The next call waits until the previous write has
finished. A folder with a `.metadata` is complete. A folder without it, from a killed rank, is never loaded.
"""

import argparse
import glob
import os
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class TrainState(Stateful):
    """Model, optimizer and step, in the form that torch.distributed.checkpoint needs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.model = fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optimizer": moments, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.step = state["step"]

    def train_step(self) -> float:
        self.step += 1
        inputs = torch.randn(12, 8, generator=torch.Generator().manual_seed(self.step))
        mine = inputs[dist.get_rank() :: dist.get_world_size()]
        loss = nn.functional.mse_loss(self.model(mine), mine.prod(dim=1, keepdim=True))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        return mean.item()


def train(args: argparse.Namespace) -> None:
    state = TrainState()
    whole = sorted(glob.glob(f"{args.folder}/step-*/.metadata"))
    if whole:
        dcp.load({"train": state}, checkpoint_id=os.path.dirname(whole[-1]))
    saving: Future[Any] | None = None
    writers = dist.new_group(backend="gloo")  # the thread's collectives must not mix with those of the training
    while state.step < args.steps:
        loss = state.train_step()
        print(f"step={state.step} rank={dist.get_rank()} of {dist.get_world_size()} loss={loss!r}")
        if state.step % args.every == 0:
            if saving:
                saving.result()
            folder = f"{args.folder}/step-{state.step:04}"
            saving = dcp.async_save({"train": state}, checkpoint_id=folder, process_group=writers)
    if saving:
        saving.result()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=12, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument(
        "--every", type=int, default=2, help="save after every N steps (default: %(default)s)", metavar="N"
    )
    parser.add_argument("--folder", default="async", help="save checkpoints in this folder (default: %(default)s)")
    args = parser.parse_args()
    dist.init_process_group("cpu:gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
