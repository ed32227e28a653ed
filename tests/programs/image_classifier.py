"""A small residual network trained on generated images, in the style of the ImageNet scripts. It has flags for
everything and a falling learning rate. An epoch of training and one of validation alternate, and the best accuracy is
kept.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # early: otherwise it keeps the group, and gloo's threads, until the interpreter's end
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

CLASSES, SIDE, IMAGES = 5, 12, 256
Loader = DataLoader[tuple[Tensor, int]]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument(
    "-b", "--batch-size", default=32, type=int, help="images of all workers in a step (default: %(default)s)"
)
parser.add_argument(
    "-j", "--workers", default=0, type=int, help="number of data loading processes (default: %(default)s)"
)
parser.add_argument("--lr", "--learning-rate", default=0.1, type=float)
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float)
parser.add_argument("-p", "--print-freq", default=4, type=int)


class GeneratedImages(Dataset[tuple[Tensor, int]]):
    """Noise that is brighter in a place given by the class. Image and class depend only on the index."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % CLASSES
        image = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(self.seed * 100_003 + index))
        image[:, 2 * label : 2 * label + 3, 2 * label : 2 * label + 3] += 1
        return image, label


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(images + self.norm(self.convolution(images)))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), Block(8), Block(8),
        nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, CLASSES),
    )  # fmt: skip


def train(loader: Loader, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    model.train()
    for step, (images, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.print_freq == 0:
            print(f"epoch {epoch} step {step}/{len(loader)} loss {loss.item()!r}")


@torch.no_grad()
def validate(loader: Loader, model: nn.Module) -> float:
    """Return the accuracy over all workers' shares."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    for images, labels in loader:
        counts += torch.tensor([(model(images).argmax(dim=1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return float(counts[0]) / float(counts[1])


def adjust_learning_rate(optimizer: torch.optim.Optimizer, epoch: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = args.lr * 0.1 ** (epoch // 2)


def make_loader(count: int, seed: int, *, shuffle: bool) -> Loader:
    images = GeneratedImages(count, seed)
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(images, shuffle=shuffle)
    return DataLoader(images, args.batch_size // dist.get_world_size(), sampler=sampler, num_workers=args.workers)


def main() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd)
    training = make_loader(IMAGES, seed=1, shuffle=True)
    validation = make_loader(IMAGES // 4, seed=2, shuffle=False)
    best = 0.0
    for epoch in range(args.epochs):
        training.sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch)
        train(training, model, optimizer, epoch)
        best = max(best, top1 := validate(validation, model))
        print(f"epoch {epoch} validation accuracy {top1!r}, best {best!r}")


if __name__ == "__main__":
    args = parser.parse_args()
    dist.init_process_group("gloo", init_method="env://")
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}")
    main()
    dist.destroy_process_group()
