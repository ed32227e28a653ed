"""Steps of an agent's story, and the actions that several tests expect."""

from functools import partial
from operator import methodcaller

from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.core.effects import (
    Exit,
    Level,
    Log,
    StopWorkers,
    WriteFailureReport,
)
from node_agent.kernel.core.events import (
    Answered,
    ConnectionFailed,
    Reported,
    Signalled,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from tests.unit.node_agent.story import (
    Story,
    a_failure,
    finish,
    leave,
    start,
)

STOP, KILL = StopWorkers("SIGTERM"), StopWorkers("SIGINT", kill=True)
FAILED_SAID = Log(words.progress.worker_failed(3, 1, 77, "a", "exit code 5", ""), Level.ERROR, "workers_failed")
waits, drains = partial(Log, event="waiting"), partial(Log, event="node_drained")
NODE_UNFIT, START_AGAIN, REFUSED = ExitCode.NODE_UNFIT, ExitCode.START_AGAIN, ExitCode.REFUSED
FAILED = finish(succeeded=False, failure=a_failure(node_id="b"))
SIGTERM = [Log(words.leaving.leaving("SIGTERM"), event="node_left"), leave()]
DRAIN_DONE = Log(words.leaving.WORKERS_GONE, event="node_left")
SIGTERM_REPORT = WriteFailureReport(words.leaving.got_signal("SIGTERM"))
AFTER_ELSEWHERE = "worker rank 9 on node b failed: exit code 1"


told = partial(methodcaller, "is_told")
passes = partial(methodcaller, "time_passes")


def happens(event):
    return methodcaller("handle", event)


def refused(error):
    return happens(Answered(error))


def signalled(name="SIGTERM"):
    return happens(Signalled(name))


def fails_to_connect(error=Unreachable("connect", "10.0.0.1: Connection refused")):  # noqa: B008
    return happens(ConnectionFailed(error))


def succeeds(agent):
    agent.handle(WorkersSucceeded(agent.machine.round))


def fails(agent):
    agent.handle(WorkerFailed(agent.machine.round, a_failure()))


def reported(agent):
    agent.handle(Reported(agent.machine.round))


def gone(agent):
    agent.handle(WorkersStopped(agent.machine.round))


RUNS = told(start(1))


def errs(text):
    return Log(words.leaving.error(text), Level.ERROR, "gave_up")


def check_actions(events, does, **limits):
    """Check the agent's actions at the last of these events."""
    agent = Story(**limits)
    for event in events:
        event(agent)
    assert agent.effects == does
    assert Exit not in map(type, does) or agent.lasts is None
