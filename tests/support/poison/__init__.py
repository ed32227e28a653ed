"""Faults that a test puts into the core of a server from outside: see `sitecustomize`."""

from pathlib import Path


def poison(run_id: str = "", unreadable: str = "") -> dict[str, str]:
    """Environment of a server in which every failure of a worker of run `run_id` raises an exception.

    So does every look at the run `unreadable`.
    """
    return {"PYTHONPATH": str(Path(__file__).parent), "POISON": run_id, "UNREADABLE": unreadable}
