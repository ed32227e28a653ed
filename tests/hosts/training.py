"""Training of the workers: a number that each step changes, so that a lost or repeated step shows in the end."""

import os
from functools import reduce
from itertools import pairwise
from pathlib import Path

CHECKPOINT_EVERY = 10
"""Steps from one checkpoint to the next: a restart may lose fewer than these."""
STEP_S = float(os.environ.get("TEST_STEP_S", "0.02"))


def learn(value: int, step: int) -> int:
    """The value after this step, given the one before it."""
    return (31 * value + step) % 1_000_003


def undisturbed(steps: int) -> int:
    """The value after so many steps of a run in which nothing goes wrong."""
    return reduce(learn, range(1, steps + 1), 0)


class Folder:
    """Files that the workers leave on the disk that they share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoint, self._journal = path / "checkpoint", path / "journal"

    # The workers' side.

    def checkpoint(self) -> tuple[int, int]:
        """The newest step that was saved, and the value after it."""
        return _pair(self._checkpoint) if self._checkpoint.exists() else (0, 0)

    def save(self, step: int, value: int) -> None:
        """Save a checkpoint, unless a later one is there: a host that was cut off may end its last step late."""
        if step > self.checkpoint()[0]:
            replace(self._checkpoint, f"{step} {value}")

    def note(self, life: str, step: int) -> None:
        """Rank 0 of one life of the training is at this step: first at the one that it goes on from."""
        with self._journal.open("a") as journal:
            journal.write(f"{life} {step}\n")

    def end(self, rank: int, step: int, value: int) -> None:
        (self.path / f"end-{rank}").write_text(f"{step} {value}")

    # The test's side.

    def repeated(self) -> list[int]:
        """Return, for each restart, how many steps that had been taken had to be taken again.

        -1: rank 0 ended between saving a step and noting it. Any fewer: steps were left out.
        """
        return [before[-1] - after[0] for before, after in pairwise(self._lives().values())]

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return the last step and the value after it, by rank."""
        return {int(path.name.removeprefix("end-")): _pair(path) for path in self.path.glob("end-*")}

    def _lives(self) -> dict[str, list[int]]:
        """The steps of each life; of one that was cut off, not the step that it ended when others were ahead."""
        lives: dict[str, list[int]] = {}
        for line in self._journal.read_text().splitlines() if self._journal.exists() else ():
            life, step = line.split()
            if life not in lives or life == next(reversed(lives)):
                lives.setdefault(life, []).append(int(step))
        return lives


def replace(path: Path, text: str) -> None:
    """Write the file at once, for whoever reads it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _pair(path: Path) -> tuple[int, int]:
    step, value = path.read_text().split()
    return int(step), int(value)
