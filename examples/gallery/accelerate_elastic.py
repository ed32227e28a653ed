"""Hugging Face Accelerate with any number of workers, each sample once an epoch: `node_agent.data`.

`prepare` gets the model and the optimizer only: the loader already loads this rank's share, and its position is in
`save_state` and `load_state`.
"""

import argparse
import glob
import os
import shutil

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from node_agent.data import ElasticLoader, ElasticSampler

SAMPLES, GLOBAL_BATCH = 26, 8


def build() -> tuple[nn.Module, torch.optim.Optimizer, ElasticLoader]:
    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 8)
    data = TensorDataset(torch.arange(SAMPLES), inputs, inputs.prod(dim=1, keepdim=True))
    loader = ElasticLoader(DataLoader(data, batch_sampler=ElasticSampler(SAMPLES, GLOBAL_BATCH), num_workers=2))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), loader


def train(args: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model, optimizer, loader = build()
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    whole = sorted(glob.glob(f"{args.folder}/step-*"))
    step = 0
    if whole:
        accelerator.load_state(whole[-1])
        step = int(whole[-1][-4:])
    while loader.epoch < args.epochs:
        for numbers, inputs, targets in loader:
            inputs, targets = inputs.to(accelerator.device), targets.to(accelerator.device)
            loss = loader.weight * nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            mean = accelerator.reduce(loss.detach(), "mean").item()
            samples = sorted(gather_object(numbers.tolist() if loader.weight else []))
            print(f"step={step} rank={accelerator.process_index} of {accelerator.num_processes} "
                  f"loss={mean!r} samples={samples}")  # fmt: skip
            if step % args.save_every == 0:
                save(accelerator, args.folder, step, args.save_every)
    # The model must not outlive the process group: if both end together, torch may wait for itself (2.13, gloo).
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()


def save(accelerator: Accelerator, folder: str, step: int, every: int) -> None:
    """Rename the checkpoint when it is complete: a killed run then finds the one before."""
    accelerator.save_state(f"{folder}/new")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.rename(f"{folder}/new", f"{folder}/step-{step:04}")
        shutil.rmtree(f"{folder}/step-{step - 2 * every:04}", ignore_errors=True)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--epochs", type=int, default=3, metavar="N", help="train for N epochs in all (default: %(default)s)"
    )
    parser.add_argument(
        "--save-every", type=int, default=2, help="save after every N steps (default: %(default)s)", metavar="N"
    )
    parser.add_argument("--folder", default="accelerate", help="save checkpoints in this folder (default: %(default)s)")
    train(parser.parse_args())
