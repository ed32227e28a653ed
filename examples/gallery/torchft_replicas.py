"""torchft beside the launcher: replicas that go on without one that died, which catches up when it is back.

Each replica is a run of its own, whose workers the launcher starts, and starts again when they die. torchft's
lighthouse joins the replicas, step by step: the others are not restarted. The replica that comes back takes its weights
from one of them; no checkpoint is read. Each step's batch is shared among those who are there.
"""

import argparse
import os
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

BATCH = 12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": sgd.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        replica_id=os.environ["TORCHELASTIC_RUN_ID"],
    )
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, sgd)
    print("this replica begins")
    while manager.current_step() < args.steps:
        optimizer.zero_grad()  # asks the lighthouse who is there
        batch = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(manager.current_step()))
        place = manager.participating_rank() or 0  # None while it catches up: what it computes does not count then
        mine = batch[place :: manager.num_participants()].double()
        loss = nn.functional.mse_loss(ddp(mine), mine.prod(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()  # unless a replica was lost meanwhile: then the step is done again
        print(f"step={manager.current_step()} replicas={manager.num_participants()} loss={loss.item()!r}")
    print(f"weights={sum(weight.sum().item() for weight in model.parameters())!r}")
    manager.shutdown()


if __name__ == "__main__":
    main()
