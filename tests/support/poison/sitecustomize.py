"""Faults in the core of one server, which finds this file by `PYTHONPATH`.

In the run that `POISON` names, handling a worker's failure raises an exception half way. In the run that `UNREADABLE`
names, reading its phase raises an exception.
"""

import os

from msgspec.structs import replace
from rdzv_protocol.states import Phase

from rdzv_server.core.events import WorkersFailed
from rdzv_server.core.kernel import machine
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.views import run_view

_rule = machine._RULES[WorkersFailed]
_phase = run_view.phase


def _raise_half_way(of_run: machine.RunMachine, fact: WorkersFailed, now: float) -> None:
    _rule.apply(of_run, fact, now)
    if of_run.run.run_id == os.environ.get("POISON"):
        raise AssertionError("a contradiction")


def _raise_instead(run: Run) -> Phase:
    if run.run_id == os.environ.get("UNREADABLE"):
        raise AssertionError("no phase")
    return _phase(run)


machine._RULES[WorkersFailed] = replace(_rule, apply=_raise_half_way)
run_view.phase = _raise_instead
