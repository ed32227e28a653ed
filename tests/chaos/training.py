"""What the workers train: a number that each step changes, so that a lost or repeated step shows in the end."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

CHECKPOINT_EVERY = 10
"""Steps from one checkpoint to the next."""
STEP_S = 0.04


def learn(value: int, step: int) -> int:
    """The value after this step, given the one before it."""
    return (31 * value + step) % 1_000_003


def undisturbed(steps: int) -> int:
    """The value after so many steps of a run in which nothing goes wrong."""
    value = 0
    for step in range(1, steps + 1):
        value = learn(value, step)
    return value


class Folder:
    """What the workers leave on the disk that they share."""

    def __init__(self, path: Path) -> None:
        self._checkpoint = path / "checkpoint"
        self._journal = path / "journal"
        self._path = path

    # The workers' side.

    def checkpoint(self) -> tuple[int, int]:
        """The newest step that was saved, and the value after it."""
        if not self._checkpoint.exists():
            return 0, 0
        step, value = self._checkpoint.read_text().split()
        return int(step), int(value)

    def save(self, step: int, value: int) -> None:
        """Atomically, unless a later one is there: a host that was cut off may end its last step late."""
        if step > self.checkpoint()[0]:
            new = self._checkpoint.with_suffix(".new")
            new.write_text(f"{step} {value}")
            new.replace(self._checkpoint)

    def note(self, life: str, step: int) -> None:
        """Rank 0 of one life of the training is at this step: first at the one that it goes on from."""
        with self._journal.open("a") as journal:
            journal.write(f"{life} {step}\n")

    def end(self, rank: int, step: int, value: int) -> None:
        (self._path / f"end-{rank}").write_text(f"{step} {value}")

    # The test's side.

    def repeated(self) -> list[int]:
        """For each restart, how many steps that had been taken had to be taken again."""
        return [before[-1] - after[0] for before, after in pairwise(self._lives().values())]

    def ends(self) -> Mapping[int, tuple[int, int]]:
        """By rank, the last step and the value after it."""
        ends = {}
        for path in self._path.glob("end-*"):
            step, value = path.read_text().split()
            ends[int(path.name.removeprefix("end-"))] = int(step), int(value)
        return ends

    def _lives(self) -> dict[str, list[int]]:
        """The steps of each life; of one that was cut off, not the step that it ended when others were ahead."""
        lives: dict[str, list[int]] = {}
        for line in self._journal.read_text().splitlines():
            life, step = line.split()
            if life not in lives or life == next(reversed(lives)):
                lives.setdefault(life, []).append(int(step))
        return lives
