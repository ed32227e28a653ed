"""Train a small network on handwritten digits with DistributedDataParallel, and survive a crash.

The same file runs under either launcher, on any number of workers:

    node-agent --standalone --nproc 2 examples/train_digits.py --checkpoint /tmp/digits.pt
    torchrun --standalone --nproc-per-node 2 examples/train_digits.py --checkpoint /tmp/digits.pt

An elastic training script needs only these:

* all facts about the other workers come from the environment, through `init_process_group`;
* every finished epoch is saved, so that new workers continue where the last ones stopped;
* the order of the samples depends only on the epoch, and the workers share a *global* batch, so that a restart with
  another number of workers continues the same training;
* a worker that fails or loses a peer exits non-zero, and leaves the restart to the launcher.

The script also reports its progress to node-agent, for hang detection (`--progress-timeout auto`) and the run's time
ledger. Nothing else depends on these reports.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: see `main`
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

try:
    from node_agent import progress
except ImportError:  # only torchrun is installed

    def progress(step: int | None = None, kind: str = "step") -> None:
        """Do nothing: there is no agent."""


SEED = 2024
HELD_OUT = 360  # of the 1797 digits, never trained on


@dataclass(frozen=True)
class Samples:
    """Images (N x 1 x 8 x 8, values from 0 to 1) and their labels (0 to 9)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, rows: Tensor | slice) -> "Samples":
        return Samples(self.images[rows], self.labels[rows])

    def share(self) -> "Samples":
        """Return this worker's part: every sample belongs to exactly one rank, whatever the world size."""
        return self.pick(slice(dist.get_rank(), None, dist.get_world_size()))


def load_samples(device: torch.device) -> tuple[Samples, Samples]:
    """Return Scikit-learn's bundled digits as (training, held-out): the same split in every process."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device).unsqueeze(1) / 16
    samples = Samples(images, torch.tensor(digits.target, device=device))
    rows = shuffled(len(samples), SEED)
    return samples.pick(rows[HELD_OUT:]), samples.pick(rows[:HELD_OUT])


def shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


class Trainer:
    """The model, its optimizer, and the number of finished epochs."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(SEED)
        self.args = args
        self.model = DistributedDataParallel(build_model().to(device))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.epochs_done = self.steps_done = 0

    def train_epoch(self, samples: Samples) -> float:
        """Make one pass over `samples`. Return the mean loss over all of them."""
        total = torch.zeros((), device=samples.labels.device)
        for rows in shuffled(len(samples), SEED + 1 + self.epochs_done).split(self.args.batch_size):
            total += self.train_step(samples.pick(rows))
            self.steps_done += 1
            progress(step=self.steps_done)
            time.sleep(self.args.step_delay_ms / 1000)
        self.epochs_done += 1
        dist.all_reduce(total)
        return float(total) / len(samples)

    def train_step(self, batch: Samples) -> Tensor:
        """Make one step on a global batch. Return the summed loss of this worker's share.

        DDP averages the workers' gradients, and their shares may differ by a sample or be empty. Scaling by world size
        over batch size makes that average the mean over the samples.
        """
        mine = batch.share()
        loss = cross_entropy(self.model(mine.images), mine.labels, reduction="sum")
        self.optimizer.zero_grad()
        (loss * dist.get_world_size() / len(batch)).backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, samples: Samples) -> float:
        """Return the fraction of `samples` that is recognized. Each worker tests its share."""
        mine = samples.share()
        correct = (self.model(mine.images).argmax(dim=1) == mine.labels).sum()
        dist.all_reduce(correct)
        return float(correct) / len(samples)

    def save(self) -> None:
        """Replace the checkpoint in one step: a crash leaves the old one or the new one, never half."""
        progress(kind="saving")  # on every rank: the others wait for the one that saves
        path = self.args.checkpoint
        if path and dist.get_rank() == 0:
            model, optimizer = self.model.module.state_dict(), self.optimizer.state_dict()
            done = {"epochs_done": self.epochs_done, "steps_done": self.steps_done}
            torch.save({"model": model, "optimizer": optimizer, **done}, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)
        progress(step=self.steps_done, kind="checkpoint")

    def resume(self) -> None:
        """Load the last finished epoch. Rank 0 reads it for all, so that all start from the same one."""
        found: list[dict[str, Any] | None] = [None]
        if dist.get_rank() == 0 and self.args.checkpoint and os.path.exists(self.args.checkpoint):
            found = [torch.load(self.args.checkpoint, map_location="cpu")]
        dist.broadcast_object_list(found, src=0)
        if (state := found[0]) is not None:
            self.model.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.epochs_done, self.steps_done = state["epochs_done"], state["steps_done"]
            say(f"resumed epochs_done={self.epochs_done} checkpoint={self.args.checkpoint}", rank=0)


def train(args: argparse.Namespace, device: torch.device) -> float:
    """Train from the checkpoint, or from scratch, to the last epoch. Return the held-out accuracy."""
    training, held_out = load_samples(device)
    trainer = Trainer(args, device)
    trainer.resume()
    while trainer.epochs_done < args.epochs:
        loss = trainer.train_epoch(training)
        trainer.save()
        say(f"epoch={trainer.epochs_done} loss={loss:.4f} accuracy={trainer.accuracy(held_out):.4f}", rank=0)
        progress(kind="evaluation")
    progress(kind="end")
    return trainer.accuracy(held_out)


def say(text: str, rank: int | None = None) -> None:
    """Print a line at once, from every worker or from one, so that lines never mix."""
    if rank in (None, dist.get_rank()):
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        print(f"{text} world_size={dist.get_world_size()} restart_count={restarts}\n", end="", flush=True)


def pick_device() -> torch.device:
    """Return a separate GPU for each worker of the node, or the CPU for all of them."""
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with DistributedDataParallel.")
    parser.add_argument(
        "--epochs", type=int, default=12, metavar="N", help="train for N epochs in all (default: %(default)s)"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=64,
        help="train on this many samples of all workers together in a step (default: %(default)s)",
    )
    parser.add_argument("--lr", type=float, default=0.003, help="set the learning rate (default: %(default)g)")
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="save into this file after each epoch, and resume from it if it exists"
    )
    parser.add_argument(
        "--target-accuracy",
        type=float,
        default=0.95,
        help="exit with 1 if the accuracy stays below this (default: %(default)g)",
    )
    parser.add_argument(
        "--step-delay-ms",
        type=float,
        default=0,
        help="wait this many milliseconds after each step, to watch it (default: %(default)g)",
    )
    return parser.parse_args()


@record
def main() -> None:
    """Run one worker. It must end gloo's threads itself: a thread that is busy when Python ends aborts the worker.

    `destroy_process_group` ends the threads if no other object keeps the group. So no model outlives `train`, and
    `torch.distributed.nn`, whose default arguments keep the group of its import, is imported before DDP does that.
    """
    args = parse_args()
    torch.set_num_threads(1)
    device = pick_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    say(f"worker pid={os.getpid()} rank={dist.get_rank()}")
    accuracy = train(args, device)
    dist.destroy_process_group()
    if accuracy < args.target_accuracy:
        sys.exit(f"accuracy {accuracy:.4f} on held-out digits is below the target {args.target_accuracy:.4f}")


if __name__ == "__main__":
    main()
