"""Lightning Fabric: a custom loop that continues from its last complete checkpoint.

Under `node-agent`, the script passes the size of the run below. `fabric run` passes it in its own variables.
"""

import argparse
import os

import torch
from lightning.fabric import Fabric
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=8, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument("--checkpoint", default="fabric.pt", help="save into this file (default: %(default)s)")
    args = parser.parse_args()
    fabric = Fabric(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
    )
    if "LT_CLI_USED" not in os.environ:  # `fabric run` has already launched it
        fabric.launch()
    fabric.seed_everything(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    if os.path.exists(args.checkpoint):
        fabric.load(args.checkpoint, state)
    for step in range(state["step"] + 1, args.steps + 1):
        batch = torch.randn(12, 8, generator=torch.Generator().manual_seed(step))
        mine = batch[fabric.global_rank :: fabric.world_size].to(fabric.device)
        loss = nn.functional.mse_loss(model(mine), mine.prod(dim=1, keepdim=True))
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = fabric.all_reduce(loss.detach(), reduce_op="mean").item()
        print(f"step={step} rank={fabric.global_rank} of {fabric.world_size} loss={mean!r}")
        fabric.save(f"{args.checkpoint}.new", state | {"step": step})
        if fabric.is_global_zero:
            os.replace(f"{args.checkpoint}.new", args.checkpoint)


if __name__ == "__main__":
    main()
