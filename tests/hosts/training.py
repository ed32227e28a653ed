"""Training of the workers: a number that each step changes, so that the end shows a lost or repeated step."""

import os
from functools import reduce
from itertools import pairwise
from pathlib import Path

CHECKPOINT_EVERY = 10
"""Steps between two checkpoints. A restart may lose fewer steps than these."""
STEP_S = float(os.environ.get("TEST_STEP_S", "0.02"))


def learn(value: int, step: int) -> int:
    """Return the value after this step, from the one before it."""
    return (31 * value + step) % 1_000_003


def undisturbed(steps: int) -> int:
    """Return the value after this number of steps without faults."""
    return reduce(learn, range(1, steps + 1), 0)


class Folder:
    """Files of the workers on their shared disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoint, self._journal = path / "checkpoint", path / "journal"

    # The workers' side.

    def checkpoint(self) -> tuple[int, int]:
        """Return the newest saved step, and the value after it."""
        return _pair(self._checkpoint) if self._checkpoint.exists() else (0, 0)

    def newest(self, survivors: str) -> tuple[int, int]:
        """Return the newest step that was saved in the checkpoint or by survivors, and the value after it."""
        if not survivors:
            return self.checkpoint()
        from node_agent import newest_saved  # the import takes a while

        saved = newest_saved(survivors)
        return max(self.checkpoint(), _pair(Path(saved.path)) if saved else (0, 0))

    def save(self, step: int, value: int) -> None:
        """Save a checkpoint unless a later one exists: a host that was cut off may end its last step late."""
        if step > self.checkpoint()[0]:
            replace(self._checkpoint, f"{step} {value}")

    def note(self, attempt: str, step: int) -> None:
        """Note that rank 0 of one attempt of the training is at this step, first at the step where it continues."""
        with self._journal.open("a") as journal:
            journal.write(f"{attempt} {step}\n")

    def end(self, rank: int, step: int, value: int) -> None:
        write(self.path / f"end-{rank}", step, value)

    # The test's side.

    def repeated(self) -> list[int]:
        """Return, for each restart, how many steps had to be repeated.

        -1 means that rank 0 ended between saving a step and noting it. Any smaller number means that steps were left
        out.
        """
        return [before[-1] - after[0] for before, after in pairwise(self._lives().values())]

    def ends(self) -> dict[int, tuple[int, int]]:
        """Return the last step and the value after it, by rank."""
        return {int(path.name.removeprefix("end-")): _pair(path) for path in self.path.glob("end-*")}

    def _lives(self) -> dict[str, list[int]]:
        """Return the steps of each incarnation. If it was cut off, leave out a step that it ended when others were
        ahead.
        """
        attempts: dict[str, list[int]] = {}
        for line in self._journal.read_text().splitlines() if self._journal.exists() else ():
            attempt, step = line.split()
            if attempt not in attempts or attempt == next(reversed(attempts)):
                attempts.setdefault(attempt, []).append(int(step))
        return attempts


def replace(path: Path, text: str) -> None:
    """Write the file in one step for its readers."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def write(path: Path, step: int, value: int) -> None:
    path.write_text(f"{step} {value}")


def _pair(path: Path) -> tuple[int, int]:
    step, value = path.read_text().split()
    return int(step), int(value)
