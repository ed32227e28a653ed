"""DeepSpeed: ZeRO stage 1 with torch's Adam. It continues from its last complete checkpoint, with the same number of
ranks.

`save_checkpoint` names the checkpoint in its file `latest` as soon as rank 0 has written its own part. Here the name is
written when every rank has finished. If the run is killed meanwhile, it finds the previous checkpoint.
"""

import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

CONFIG = {
    "train_batch_size": 12,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},  # DeepSpeed's own would need a compiler
    "zero_optimization": {"stage": 1},
}

if not torch.cuda.is_available():  # gloo works, and nothing must be compiled
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    if os.path.exists(f"{args.folder}/latest"):
        engine.load_checkpoint(args.folder)
    for step in range(engine.global_steps + 1, args.steps + 1):
        batch = torch.randn(12, 8, generator=torch.Generator().manual_seed(step))
        mine = batch[dist.get_rank() :: dist.get_world_size()].to(engine.device)
        loss = nn.functional.mse_loss(engine(mine), mine.prod(dim=1, keepdim=True))
        engine.backward(loss)
        engine.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        print(f"step={step} rank={dist.get_rank()} of {dist.get_world_size()} loss={mean.item()!r}")
        save(engine, args.folder, f"step-{step:04}")


def save(engine: deepspeed.DeepSpeedEngine, folder: str, name: str) -> None:
    engine.save_checkpoint(folder, tag=name, save_latest=False)  # returns when every rank has written its part
    if dist.get_rank() == 0:
        with open(f"{folder}/latest.new", "w") as file:
            file.write(name)
        os.replace(f"{folder}/latest.new", f"{folder}/latest")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--steps", type=int, default=8, metavar="N", help="train for N steps in all (default: %(default)s)"
    )
    parser.add_argument("--folder", default="deepspeed", help="save checkpoints in this folder (default: %(default)s)")
    args = parser.parse_args()
    deepspeed.init_distributed()
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
