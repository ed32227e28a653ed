"""Faults that a test injects into the core of a server from outside: see `sitecustomize`."""

from pathlib import Path


def poison(run_id: str = "", unreadable: str = "") -> dict[str, str]:
    """Return the environment of a server in which every failure of a worker of run `run_id` raises an exception.

    Reading the phase of the run `unreadable` also raises one.
    """
    return {"PYTHONPATH": str(Path(__file__).parent), "POISON": run_id, "UNREADABLE": unreadable}
