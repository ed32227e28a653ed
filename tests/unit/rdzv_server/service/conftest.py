"""Runs that are checked after every event."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from rdzv_server.core.kernel.machine import RunMachine


@pytest.fixture(autouse=True)
def valid_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that no event from the service, and no refusal, makes a run's state contradictory."""

    def checked(change: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(change)
        def change_and_check(machine: RunMachine, *args: Any) -> Any:
            try:
                return change(machine, *args)
            finally:
                machine.run.validate()

        return change_and_check

    for name in ("handle", "renew", "restart"):
        monkeypatch.setattr(RunMachine, name, checked(getattr(RunMachine, name)))
