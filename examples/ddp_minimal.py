"""The smallest DistributedDataParallel program: one step of a toy model on every worker.

    node-agent --standalone --nproc 2 examples/ddp_minimal.py
    torchrun --standalone --nproc-per-node 2 examples/ddp_minimal.py

The launcher gives each worker its place through a handful of environment variables; the program reads
them, joins the process group and trains. Nothing in it knows which launcher started it.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

INIT_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


def say(text: str) -> None:
    print(f"[{os.getpid()}] {text}\n", end="", flush=True)


def pick_device() -> torch.device:
    """Return this node's GPU by local rank, or the CPU if there are too few GPUs."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def demo_basic(device: torch.device) -> None:
    """Run forward, backward and step. DDP averages the gradients in `backward`, so all replicas stay equal."""
    model = DistributedDataParallel(ToyModel().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs, labels = torch.randn(20, 10, device=device), torch.randn(20, 5, device=device)
    loss = nn.functional.mse_loss(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say(f"rank={dist.get_rank()} loss={loss.item():.4f}")


def spmd_main() -> None:
    """Program of every worker: single program, multiple data.

    `torch.distributed.nn` is imported above. If DDP imported it after the process group was created, its default
    arguments would keep the group, and gloo's threads, beyond `destroy_process_group`. A thread that is busy when
    Python ends aborts the worker.
    """
    say("joining with " + " ".join(f"{name}={os.environ[name]}" for name in INIT_VARIABLES))
    device = pick_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    say(f"rank={dist.get_rank()} world_size={dist.get_world_size()} backend={dist.get_backend()}")
    demo_basic(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    spmd_main()
