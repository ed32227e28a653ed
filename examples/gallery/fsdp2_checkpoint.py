"""FSDP2: `fully_shard`, and a sharded checkpoint by torch.distributed.checkpoint that any number of ranks can load.

Each step's checkpoint is a separate folder. Its `.metadata` is written last, so a folder with that file is complete.
"""

import argparse
import glob
import os
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BATCH = 12


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, step: int) -> Tensor:
    """Return the mean over this rank's share of the step's batch, which depends only on the step's number."""
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))
    mine = inputs[dist.get_rank() :: dist.get_world_size()].to(next(model.parameters()).device)
    return nn.functional.mse_loss(model(mine), mine.prod(dim=1, keepdim=True))


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def train(args: argparse.Namespace) -> None:
    model, optimizer = build()
    whole = sorted(glob.glob(f"{args.folder}/step-*/.metadata"))
    begin = 0
    if whole:
        newest = os.path.dirname(whole[-1])
        state, begin = state_of(model, optimizer), int(newest[-4:])
        dcp.load(state, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for step in range(begin + 1, args.steps + 1):
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        print(f"step={step} rank={dist.get_rank()} of {dist.get_world_size()} loss={mean.item()!r}")
        dcp.save(state_of(model, optimizer), checkpoint_id=f"{args.folder}/step-{step:04}")
        if dist.get_rank() == 0:
            shutil.rmtree(f"{args.folder}/step-{step - 2:04}", ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=8, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument("--folder", default="fsdp2", help="save checkpoints in this folder (default: %(default)s)")
    args = parser.parse_args()
    dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
