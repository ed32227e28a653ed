"""Hugging Face Accelerate: a custom loop that continues from its last complete checkpoint.

`save_state` writes several files. They go into a folder with a temporary name, which is renamed when all are complete.
If the run is killed meanwhile, it finds the previous checkpoint.
"""

import argparse
import glob
import os
import shutil

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    inputs = torch.randn(96, 8)
    data = TensorDataset(inputs, inputs.prod(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), DataLoader(data, batch_size=12, shuffle=True)


def train(args: argparse.Namespace) -> None:
    order = DataLoaderConfiguration(use_seedable_sampler=True)  # the order follows from the epoch's number
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=order)
    model, optimizer, loader = accelerator.prepare(*build())
    whole = sorted(glob.glob(f"{args.folder}/epoch-*"))
    begin = 0
    if whole:
        accelerator.load_state(whole[-1])  # including each rank's random numbers
        begin = int(whole[-1][-4:])
    for epoch in range(begin + 1, args.epochs + 1):
        loader.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean").item()
        print(f"epoch={epoch} rank={accelerator.process_index} of {accelerator.num_processes} loss={mean!r}")
        save(accelerator, args.folder, epoch)
    # The model must not outlive the process group: if both end together, torch may wait for itself (2.13, gloo).
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


def save(accelerator: Accelerator, folder: str, epoch: int) -> None:
    accelerator.save_state(f"{folder}/new")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.rename(f"{folder}/new", f"{folder}/epoch-{epoch:04}")
        shutil.rmtree(f"{folder}/epoch-{epoch - 2:04}", ignore_errors=True)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--epochs", type=int, default=4, metavar="N", help="train for N epochs in all (default: %(default)s)"
    )
    parser.add_argument("--folder", default="accelerate", help="save checkpoints in this folder (default: %(default)s)")
    train(parser.parse_args())
