"""torchft together with the launcher: replicas continue when one of them dies, and it catches up when it returns.

Each replica is a separate run. The launcher starts its workers, and restarts them when they die. torchft's lighthouse
joins the replicas at each step, so the others do not restart. A replica that returns takes its weights from another
one, without a checkpoint. The present replicas share each step's batch.
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
    parser.add_argument(
        "--steps", type=int, default=80, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
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
        optimizer.zero_grad()  # asks the lighthouse which replicas are present
        batch = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(manager.current_step()))
        place = manager.participating_rank() or 0  # None while it catches up: its results do not count then
        mine = batch[place :: manager.num_participants()].double()
        loss = nn.functional.mse_loss(ddp(mine), mine.prod(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()  # repeated if a replica was lost meanwhile
        print(f"step={manager.current_step()} replicas={manager.num_participants()} loss={loss.item()!r}")
    print(f"weights={sum(weight.sum().item() for weight in model.parameters())!r}")
    manager.shutdown()


if __name__ == "__main__":
    main()
