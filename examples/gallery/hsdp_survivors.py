"""FSDP2 with hybrid sharding: survivors of several replicas save the parts of the last step, on a shared disk.

Two ranks share a replica of the model, and each replica has all parts. When a worker or a node dies, one survivor saves
each part with torch.distributed.checkpoint, without the others. All parts of one step together are the state, and any
number of replicas can load it.
"""

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import node_agent

BATCH, PARTS = 12, 2


def build(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, step: int) -> Tensor:
    """Return the mean over this rank's share of the step's batch, which depends only on the step's number."""
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))
    mine = inputs[dist.get_rank() :: dist.get_world_size()].to(next(model.parameters()).device)
    return nn.functional.mse_loss(model(mine), mine.prod(dim=1, keepdim=True))


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def train(args: argparse.Namespace) -> None:
    mesh = init_device_mesh(
        "cuda" if torch.cuda.is_available() else "cpu", (dist.get_world_size() // PARTS, PARTS),
        mesh_dim_names=("replica", "part"),
    )  # fmt: skip
    model, optimizer = build(mesh)
    state, begin = state_of(model, optimizer), 0
    found = [node_agent.newest_saved(args.folder)]
    dist.broadcast_object_list(found)  # all ranks load the same one
    if saved := found[0]:
        for path in saved.paths:  # each fills in what it has
            dcp.load(state, checkpoint_id=path, no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        begin = saved.step

    def save(path: str, step: int) -> None:
        dcp.save(state, checkpoint_id=path, no_dist=True)

    part = (mesh.get_local_rank("part"), PARTS)
    with node_agent.saved_by_survivors(args.folder, save, part=part) as survivor:
        for step in range(begin + 1, args.steps + 1):
            loss = loss_of(model, step)
            optimizer.zero_grad()
            loss.backward()
            with survivor.update(step):  # the state changes only here
                optimizer.step()
                state = state_of(model, optimizer)  # no copy: the thread that saves need not ask FSDP
            node_agent.progress(step)
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            print(f"step={step} rank={dist.get_rank()} loss={mean.item()!r}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=10, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument(
        "--survivors",
        dest="folder",
        default="survivors",
        help="let survivors save into this folder on a shared disk (default: %(default)s)",
    )
    args = parser.parse_args()
    dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
