"""A worker that takes steps in lockstep: at each step it waits for the slowest worker.

It exits when there is a file `enough` in the folder $STEPS. NODE_IS_SLOW=1 makes its own work take longer. It saves
when a notice says that its round ends: a file `saved_RANK` then has the notice.
"""

import os
import time
from itertools import count
from pathlib import Path

from node_agent import acknowledge, notice, progress

FOLDER = Path(os.environ["STEPS"])
ROUND, RANK, WORLD_SIZE = os.environ["MASTER_PORT"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WORK_S = 0.15 if os.environ["NODE_IS_SLOW"] == "1" else 0.02


def mark(step: int, rank: int) -> Path:
    """Return the file that shows that this worker has done its own work of the step."""
    return FOLDER / f"round_{ROUND}_step_{step}_{rank}"


def end_if_enough() -> None:
    if (FOLDER / "enough").exists():
        raise SystemExit


def save_if_told() -> None:
    saved = FOLDER / f"saved_{RANK}"
    if not saved.exists() and (told := notice()):
        saved.write_text(f"{told.source} {told.node_id}: {told.reason}")
        acknowledge()


for step in count():
    time.sleep(WORK_S)
    progress(kind="work")
    mark(step, RANK).touch()
    while not all(mark(step, other).exists() for other in range(WORLD_SIZE)):
        end_if_enough()
        time.sleep(0.002)
    progress(step=step)
    save_if_told()
    end_if_enough()
