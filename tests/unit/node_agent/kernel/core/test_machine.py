"""An agent from start to end: it joins, runs, stops, returns, ends."""

from functools import partial
from math import inf
from operator import methodcaller
from typing import get_args

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import (
    AgentFenced,
    NodeRankTaken,
    OutcomeUnknown,
    RunSucceeded,
    ServerUnavailable,
    SettingsConflict,
    Unauthorized,
)
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import AnswerRequest, Drain, LeaveRequest, RunTime, SuspectRequest, Wait
from rdzv_protocol.queries import LogTail, TailLog
from rdzv_protocol.settings import RequestedSettings
from rdzv_protocol.timing import HOLDS_PER_LEASE

from node_agent import words
from node_agent.kernel.core.backoff import Cut, Unreachable
from node_agent.kernel.core.effects import (
    Ask,
    CheckNode,
    Exit,
    Level,
    Log,
    MatchRules,
    StartWorkers,
    StopWorkers,
    WriteFailureReport,
)
from node_agent.kernel.core.events import (
    Answer,
    Answered,
    ConnectionFailed,
    Crashed,
    GaveUp,
    NodeChecked,
    PollCut,
    Reported,
    RulesMatched,
    Signalled,
    Started,
    Suspected,
    TimePassed,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from node_agent.kernel.core.machine import CAUSE_TIMEOUT_S, NOT_STARTED
from node_agent.words.connection import Stage
from tests.unit.node_agent.story import (
    LEASE_S,
    Story,
    a_failure,
    an_assignment,
    drain,
    finish,
    join,
    leave,
    poll,
    report,
    start,
    stop,
    wait,
)

STOP, KILL = StopWorkers("SIGTERM"), StopWorkers("SIGINT", kill=True)
FAILED_SAID = Log(words.progress.worker_failed(3, 1, 77, "a", "exit code 5", ""), Level.ERROR, "workers_failed")
STOPPING_SAID = Log(words.progress.stopping_workers(1, "node b left: SIGTERM"), event="round_opened")
SUCCEEDED_SAID = Log(words.progress.run_succeeded("all workers of 3 nodes exited 0"), Level.ROUTINE, "run_succeeded")
WARNED = Log("look", Level.WARNING, "warned")
STUCK = Suspected(1, "progress", "stuck", (2,), WARNED, silent_s=9.0, limit_s=8.0)
TOLD_OF_HANG = SuspectRequest(
    run_id="run", agent_id="a.1", round=1, source="progress", reason="stuck", ranks=(2,), silent_s=9.0, limit_s=8.0
)
OVER_SAID = Log("run r has already succeeded", Level.ROUTINE, "run_succeeded")
REFUSED_SAID = Log(words.leaving.error("no"), Level.ERROR, "refused")
ANEW = Log(words.leaving.rejoining("gone", 0.0), event="fenced")
KILLING_SAID = Log(words.leaving.killing_workers("SIGINT"), event="node_left")
waits, drains = partial(Log, event="waiting"), partial(Log, event="node_drained")
begins = partial(Log, level=Level.ROUTINE, event="round_started")
NODE_UNFIT, START_AGAIN, REFUSED = ExitCode.NODE_UNFIT, ExitCode.START_AGAIN, ExitCode.REFUSED
FAILED = finish(succeeded=False, failure=a_failure(node_id="b"))
SPENT = [Log(words.progress.run_failed("spent"), Level.ERROR, "run_failed"), WriteFailureReport("spent", FAILED)]
SIGTERM = [Log(words.leaving.leaving("SIGTERM"), event="node_left"), leave()]
DRAIN_SAID = Log(words.leaving.drained("node a is drained", 60.0, has_workers=True), event="node_drained")
DRAIN_DONE = Log(words.leaving.WORKERS_GONE, event="node_left")
DRAIN_SAID_IDLE = drains(words.leaving.drained("node a is drained", 60.0, has_workers=False))
DRAIN_REPORT = WriteFailureReport("node a is drained")
SIGTERM_REPORT = WriteFailureReport(words.leaving.got_signal("SIGTERM"))
AFTER_ELSEWHERE = "worker rank 9 on node b failed: exit code 1"
TIME = RunTime(training_s=90.0, lost_s=8.0, restarting_s=2.0, ettr=0.9)
RESTARTED = finish(restart_total=5, charged_restarts=2, time=TIME)
RESTARTED_SAID = [
    Log(words.progress.run_took({"training": 90.0, "lost": 8.0, "restarting": 2.0}, 0.9), Level.ROUTINE),
    Log(words.progress.run_succeeded_after_restarts(RESTARTED.reason, 5, 2), Level.ROUTINE, "run_succeeded"),
]


def placed(round_):
    """Return the line about the node's place in this round of `an_assignment`."""
    master = f"10.0.0.1:{40_000 + round_}"
    ranks = {"first_rank": 2, "last_rank": 5, "workers": 10}
    return words.progress.round_started(round_, 1, 3, **ranks, master=master, restarts=round_ - 1, most_restarts=3)


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


def gone_told(seconds):
    """The workers have ended, one perhaps by a signal that the agent may also get, within this many seconds."""
    return lambda agent: agent.handle(WorkersStopped(1, agent.now + seconds))


RUNS = told(start(1))
STOPPED = [RUNS, told(stop(1)), gone, told(stop(1), revision=2)]
"""Steps of an agent that was told to stop in round 1, and joins the next one."""

# fmt: off
STORIES = {  # the events, and the agent's actions at the last one
    # joining
    "it joins as soon as it is up": ([], [join("a.1", after_round=0)]),
    "it says what it waits for, and polls":
        ([told(wait("for 1 more"))], [waits("for 1 more"), poll(revision=1)]),
    "a warning of the server is said":
        ([told(wait("for a"), warning="look")], [WARNED, waits("for a"), poll(revision=1)]),
    "a warning of the server is said once":
        ([told(wait("for a"), warning="look"), told(wait("for a"), warning="look")], [poll(revision=2)]),
    "what it waits for is not said again when only the countdown has changed":
        ([told(wait("1 of 2 joined (a)", 600.0)), told(wait("1 of 2 joined (a)", 590.0))], [poll(revision=2)]),
    "what it waits for is said again when it has changed":
        ([told(wait("for 2", 600.0)), told(wait("for 1", 600.0))],
         [waits("for 1; gives up in 600 s"), poll(revision=2)]),
    "a reply that brings nothing new is answered with the next poll":
        ([told(wait()), told(wait(), revision=1)], [poll(revision=1)]),
    "a round starts the workers and says their place":
        ([RUNS], [begins(placed(1)),
                  StartWorkers(an_assignment(1)), poll(revision=1)]),
    "only one request is under way": ([happens(TimePassed()), happens(Started())], []),
    "a round that was over before the agent heard of it is joined after":
        ([told(stop(1, AFTER_ELSEWHERE))],
         [Log(words.progress.round_over(1, AFTER_ELSEWHERE), event="round_opened"), join(after_round=1)]),

    # running
    "an agent whose workers run keeps polling": ([RUNS, told(start(1), revision=1)], [poll(revision=1)]),
    "workers that run are not started again": ([told(start(2)), told(start(2))], [poll(revision=2)]),
    "nor for an earlier round": ([told(start(2)), told(start(1))], [poll(revision=2)]),
    "a round that it was told before does not start again": ([*STOPPED, told(start(1))], [poll(revision=3)]),
    "but the next one does":
        ([*STOPPED, told(start(1)), told(start(2))],
         [begins(placed(2)),
          StartWorkers(an_assignment(2)), poll(revision=4)]),
    **{f"a {type(directive).__name__} older than the last reply changes nothing":
        ([told(start(1), revision=7), told(directive, revision=6)], [poll(revision=7)])
       for directive in (wait("old"), stop(1), finish(), start(3))},

    # succeeding
    "success is reported and the run waited for": ([RUNS, succeeds], [report()]),
    "success is reported once": ([RUNS, succeeds, succeeds], []),
    "an agent whose run succeeds exits 0": ([RUNS, succeeds, told(finish())], [SUCCEEDED_SAID, Exit(0)]),
    "a failure elsewhere restarts an agent that has finished":
        ([RUNS, succeeds, told(stop(1, AFTER_ELSEWHERE))],
         [Log(words.progress.stopping_workers(1, AFTER_ELSEWHERE), event="round_opened"), join(after_round=1)]),
    **{f"an end of another round's workers is not reported: {type(event).__name__}":
        ([told(start(2)), happens(event)], []) for event in (WorkersSucceeded(1), WorkerFailed(1, a_failure()))},

    # failing
    "a failure is reported and the siblings are stopped":
        ([RUNS, fails], [FAILED_SAID, report(failure=a_failure()), STOP]),
    "a second failure of a round is not reported": ([RUNS, fails, fails], []),
    "after a failure it waits for the server to say that there is a next round": ([RUNS, fails, gone], []),
    "and joins when that has come":
        ([RUNS, fails, reported, gone, told(stop(1))], [STOPPING_SAID, join(after_round=1)]),
    "a join does not overtake the report":
        ([RUNS, fails, gone, told(stop(1))], [STOPPING_SAID, poll(revision=2, hold=False)]),
    "but follows it": ([RUNS, fails, gone, told(stop(1)), told(stop(1)), reported], [join(after_round=1)]),
    "the report of a round before is no news":
        ([RUNS, fails, gone, told(stop(1)), told(stop(1)), happens(Reported(0))], []),
    "siblings that are still there are not stopped twice":
        ([RUNS, fails, told(stop(1))], [STOPPING_SAID, poll(revision=2, hold=False)]),
    "and when they are gone it joins":
        ([RUNS, fails, reported, told(stop(1)), told(stop(1), revision=2), gone], [join(after_round=1)]),
    "a failure is said once":
        ([RUNS, fails, reported, gone, told(stop(1, a_failure().sentence))],
         [Log(words.progress.stopping_workers(1, ""), event="round_opened"), join(after_round=1)]),
    "a failed run ends with the evidence of it": ([RUNS, fails, gone, told(FAILED)], [*SPENT, Exit(1)]),
    "the workers are stopped before the evidence is left": ([RUNS, told(FAILED)], [SPENT[0], STOP, SPENT[1]]),

    # stopping
    "a stop stops the workers and says why":
        ([RUNS, told(stop(1))], [STOPPING_SAID, STOP, poll(revision=2, hold=False)]),
    "a stop of another round stops nobody": ([told(start(2)), told(stop(1))], [poll(revision=2)]),
    "a repeated stop says and stops nothing more": ([RUNS, told(stop(1)), told(stop(1), revision=2)], []),
    "a worker that fails while it is stopped is not reported": ([RUNS, told(stop(1)), fails], []),
    "the connection is free for the join the moment the last worker is gone":
        ([RUNS, told(stop(1)), told(stop(1), revision=2), gone], [join(after_round=1)]),
    "a join that is due while a keep-alive is under way waits": ([RUNS, told(stop(1)), gone], []),
    "and follows its answer": (STOPPED, [join(after_round=1)]),
    "no round starts before the agent has joined it":
        ([RUNS, told(stop(1)), gone, told(start(2))], [join(after_round=1)]),
    "an agent that may get its worker's signal does not join yet":
        ([RUNS, told(stop(1)), told(stop(1), revision=2), gone_told(0.5)], []),
    "it joins when none has come":
        ([RUNS, told(stop(1)), told(stop(1), revision=2), gone_told(0.5), passes(0.5)], [join(after_round=1)]),
    "it leaves when one comes, without having joined":
        ([RUNS, told(stop(1)), told(stop(1), revision=2), gone_told(0.5), signalled()],
         [*SIGTERM, SIGTERM_REPORT, Exit(START_AGAIN)]),
    "workers of an earlier round that are gone are no news":
        ([*STOPPED, told(start(2)), told(stop(2)), happens(WorkersStopped(1)),
          told(stop(2), revision=4)], []),
    "a stop that was obeyed before is no reason to join again":
        ([*STOPPED, told(stop(1), revision=2)], [poll(revision=2)]),

    "workers that have all ended do not hang":
        ([RUNS, happens(WorkersSucceeded(1, True)), happens(STUCK)], []),
    "those that run may, and both people and the server are told": ([RUNS, happens(STUCK)], [WARNED, TOLD_OF_HANG]),
    "those of an earlier round are not meant":
        ([RUNS, happens(replace(STUCK, round=0))], []),

    # fenced
    "a fenced agent stops its workers":
        ([told(start(4)), refused(AgentFenced("gone"))], [ANEW, STOP]),
    "and joins again as another": ([told(start(4)), refused(AgentFenced("gone")), gone], [join("a.2", returning=True)]),
    "it takes whatever its new run tells it":
        ([told(start(9), revision=50), refused(AgentFenced("gone")), gone, told(start(1), revision=1)],
         [begins(placed(1)),
          StartWorkers(an_assignment(1)), poll("a.2", revision=1)]),
    "without workers it joins again at once":
        ([refused(AgentFenced("gone"))], [ANEW, join("a.2", returning=True)]),
    "fenced while its workers stop, it does not stop them twice":
        ([RUNS, told(stop(1)), refused(AgentFenced("gone"))], [ANEW]),

    # its run has ended meanwhile and is forgotten
    "an agent whose run ended while it slept tells in which attempt it was":
        ([told(start(4), attempt=3), refused(AgentFenced("gone")), gone], [join("a.2", returning=True, attempt=3)]),
    "and exits 77 if the run is forgotten":
        ([told(start(4)), refused(AgentFenced("gone")), gone, refused(OutcomeUnknown("no"))],
         [REFUSED_SAID, WriteFailureReport("OutcomeUnknown: no"), Exit(REFUSED)]),
    "but with 0 if all of its own workers had exited 0":
        ([RUNS, succeeds, refused(AgentFenced("gone")), refused(OutcomeUnknown("no"))],
         [Log(words.leaving.outcome_unknown("no"), Level.WARNING, "refused"),
          Exit(0)]),
    "not if workers that ran later had not":
        ([RUNS, succeeds, refused(AgentFenced("gone")), told(start(1)), refused(AgentFenced("gone")), gone,
          refused(OutcomeUnknown("no"))],
         [REFUSED_SAID, WriteFailureReport("OutcomeUnknown: no"), Exit(REFUSED)]),

    # refused
    "an agent that comes after the success exits 0":
        ([refused(RunSucceeded("run r has already succeeded"))], [OVER_SAID, Exit(0)]),
    **{f"an agent that may not take part exits 77 and says why: {error.code}":
        ([refused(error("no"))], [REFUSED_SAID, WriteFailureReport(f"{error.__name__}: no"), Exit(REFUSED)])
       for error in (SettingsConflict, NodeRankTaken, Unauthorized)},
    "a refusal stops the workers first":
        ([RUNS, refused(Unauthorized("no"))], [REFUSED_SAID, STOP, WriteFailureReport("Unauthorized: no")]),
    "and then the agent exits": ([RUNS, refused(Unauthorized("no")), gone], [Exit(REFUSED)]),
    "a fenced agent that is not let in again is refused as a new one":
        ([RUNS, refused(AgentFenced("gone")), gone, refused(NodeRankTaken("no"))],
         [REFUSED_SAID, WriteFailureReport("NodeRankTaken: no"), Exit(REFUSED)]),
    "a report that the server refuses ends the agent":
        ([RUNS, fails, happens(GaveUp("no", REFUSED)), gone], [Exit(REFUSED)]),
    "an agent that is ending keeps its exit code when its last word is refused":
        ([RUNS, signalled(), happens(GaveUp("too long", REFUSED)), gone], [Exit(START_AGAIN)]),

    # draining
    "a drained agent has its workers stopped with the time that they are given, and polls on":
        ([RUNS, told(drain(60))],
         [DRAIN_SAID, StopWorkers(grace_s=60.0), DRAIN_REPORT, poll(revision=2)]),
    "and leaves when they are gone":
        ([RUNS, told(drain()), gone], [DRAIN_DONE, leave(reason="drained"), Exit(START_AGAIN)]),
    "an agent without workers leaves at once when it is drained":
        ([told(wait("standing by")), told(drain())],
         [DRAIN_SAID_IDLE, DRAIN_REPORT, leave(reason="drained"), Exit(START_AGAIN)]),
    "so does one whose workers have exited 0":
        ([RUNS, succeeds, told(drain())],
         [DRAIN_SAID_IDLE, DRAIN_REPORT, leave(reason="drained"), Exit(START_AGAIN)]),
    "workers that stop already are not signalled again":
        ([RUNS, told(stop(1)), told(drain())], [DRAIN_SAID, DRAIN_REPORT, poll(revision=3)]),
    "and their agent leaves instead of joining":
        ([RUNS, told(stop(1)), told(drain()), gone], [DRAIN_DONE, leave(reason="drained"), Exit(START_AGAIN)]),
    "told again, a drained agent does nothing more": ([RUNS, told(drain()), told(drain())], [poll(revision=3)]),
    "unless its workers are given less time":
        ([RUNS, told(drain(60)), told(drain(5))],
         [drains(words.leaving.drained("node a is drained", 5.0, has_workers=True)), StopWorkers(grace_s=5.0),
          poll(revision=3)]),
    **{f"a drained agent starts nothing and joins nothing: {type(directive).__name__}":
        ([RUNS, told(drain()), told(directive)], [poll(revision=3)]) for directive in (start(2), stop(1))},
    "a drained agent that is fenced asks nothing more": ([RUNS, told(drain()), refused(AgentFenced("gone"))], []),
    "and leaves all the same":
        ([RUNS, told(drain()), refused(AgentFenced("gone")), gone],
         [DRAIN_DONE, leave(reason="drained"), Exit(START_AGAIN)]),
    "a signal gives a drained agent's workers the time that signals give":
        ([RUNS, told(drain()), signalled()], [*SIGTERM, STOP, SIGTERM_REPORT]),
    "the end of the run is the end of a drained agent": ([RUNS, told(drain()), told(finish()), gone], [Exit(0)]),
    "a drained agent that loses its server leaves all the same":
        ([RUNS, told(drain()), happens(ConnectionFailed(Unreachable("connect", "refused"))), gone],
         [DRAIN_DONE, leave(reason="drained"), Exit(START_AGAIN)]),

    # ending
    "an end of the run stops what still runs": ([RUNS, told(finish())], [SUCCEEDED_SAID, STOP]),
    "with its time, if there were restarts": ([RUNS, told(RESTARTED)], [*RESTARTED_SAID, STOP]),
    "and exits by the run's end": ([RUNS, told(finish()), gone], [Exit(0)]),
    "also if it has failed": ([RUNS, told(FAILED), gone], [Exit(1)]),
    **{f"a node {why} is unfit":
        ([RUNS, told(finish(succeeded=False, failure=a_failure(**failure))), gone], [Exit(NODE_UNFIT)])
       for why, failure in (("that is to blame", {"blame": "node"}),
                            ("that cannot start a worker", {"pid": 0, "exit_code": NOT_STARTED}))},
    "another one's failing hardware is not this node's":
        ([RUNS, told(finish(succeeded=False, failure=a_failure(node_id="b", blame="node"))), gone], [Exit(1)]),
    "a standby exits with the run": ([told(wait("standing by")), told(finish())], [SUCCEEDED_SAID, Exit(0)]),
    **{f"{name} makes the agent leave and stop its workers with the same signal":
        ([RUNS, signalled(name)],
         [Log(words.leaving.leaving(name), event="node_left"), leave(reason=name), StopWorkers(name),
          WriteFailureReport(words.leaving.got_signal(name))]) for name in ("SIGTERM", "SIGINT")},
    "and exits when they are gone": ([RUNS, signalled(), gone], [Exit(START_AGAIN)]),
    "a second signal kills the workers":
        ([RUNS, signalled("SIGINT"), signalled("SIGINT")], [KILLING_SAID, KILL]),
    "a signal after the end of the run kills the workers":
        ([RUNS, told(finish()), signalled("SIGINT")], [KILLING_SAID, KILL]),
    "an agent without workers leaves at once": ([signalled()], [*SIGTERM, SIGTERM_REPORT, Exit(START_AGAIN)]),
    "an agent that was signalled while its workers stop does not signal them twice":
        ([RUNS, told(stop(1)), signalled()], [*SIGTERM, SIGTERM_REPORT]),
    **{f"an agent that leaves does as no server says: {type(directive).__name__}":
        ([RUNS, signalled(), told(directive)], [])
       for directive in (wait(), start(2), stop(1), finish())},
    "an agent that leaves heeds no refusal": ([RUNS, signalled(), refused(RunSucceeded("over"))], []),
    **{f"after the exit nothing happens: {name}": ([RUNS, succeeds, told(finish()), event], [])
       for name, event in {
           "start": told(start(2)),
           "fenced": refused(AgentFenced("gone")),
           "signal": signalled(),
           "gave up": happens(GaveUp("no free port")),
           "time": happens(TimePassed()),
           "failure": happens(WorkerFailed(1, a_failure())),
           "stopped": happens(WorkersStopped(1)),
       }.items()},
}
# fmt: on


def test_while_workers_stop_the_server_hears_at_once_and_then_three_times_in_a_lease():
    agent = Story()
    agent.is_told(start(1))
    agent.is_told(stop(1))
    assert agent.lasts is None, "an answer to the first keep-alive is due"
    for _ in range(4):
        agent.is_told(stop(1), revision=2)
        assert agent.effects == []
        assert agent.lasts == LEASE_S / HOLDS_PER_LEASE
        agent.time_passes(agent.lasts)
        assert agent.effects == [poll("a.1", revision=2, hold=False)]
    agent.is_told(stop(1), revision=2)
    gone(agent)
    assert agent.lasts is None, "it joins, and has nothing to keep alive"


def test_a_fenced_agent_has_nothing_to_keep_alive():
    agent = Story()
    agent.is_told(start(1))
    refused(AgentFenced("gone"))(agent)
    assert agent.lasts is None


# Outages of the server.

CONNECT = "connect: 10.0.0.1: Connection refused"
SERVER = "host:1"
UNKNOWN = Unreachable("TLS", "of an unknown authority", is_final=True)
LOST_5 = words.connection.server_given_up(SERVER, 5.0, CONNECT, "connect")
LEAVING_SAID = Log(words.leaving.leaving_without_server("SIGTERM"), Level.WARNING, "node_left")
ALL_SUCCEEDED = Log(words.leaving.WORKERS_SUCCEEDED, Level.WARNING, "server_lost")


def warned(text, event="server_lost"):
    return Log(text, Level.WARNING, event)


def lost(has_workers, longest_s, failure=CONNECT):
    return warned(words.connection.server_lost(SERVER, str(failure), has_workers, longest_s))


def reached(after_s):
    return warned(words.connection.server_reached(SERVER, after_s), "server_reached")


def server_given_up(within_s, failure=CONNECT, stage="connect"):
    return gives_up(words.connection.server_given_up(SERVER, within_s, str(failure), stage), START_AGAIN)


def errs(text):
    return Log(words.leaving.error(text), Level.ERROR, "gave_up")


WITHIN_300 = errs(words.connection.server_given_up(SERVER, 300.0, CONNECT, "connect"))


CLOSED = Unreachable("HTTP", words.connection.CLOSED, is_cut=True)
TIMED_OUT = Unreachable("proxy", words.connection.proxy_answered(504, True), is_cut=True)


def is_cut(open_s, error):
    return happens(PollCut(Cut(open_s, error)))


def warned_of_cut(open_s, error):
    return warned(words.connection.poll_cut(SERVER, open_s, str(error), LEASE_S / 2), "warned")


def gives_up(text, code):
    return [errs(text), WriteFailureReport(text, is_server_lost=True), Exit(code)]


# fmt: off
OUTAGES = {  # limits of the wait, the events, and the agent's actions at the last one
    "a server that is not there yet is said":
        ({"connect_timeout_s": 60.0}, [fails_to_connect()],
         [warned(words.connection.not_reached_yet(SERVER, CONNECT, 60.0, "connect"))]),
    "and so is its arrival":
        ({"connect_timeout_s": 60.0}, [fails_to_connect(), passes(3.0), told(wait("for 1"))],
         [reached(3.0), waits("for 1"), poll(revision=1)]),
    "a server that never answers is not given up before its time":
        ({"connect_timeout_s": 4.0}, [fails_to_connect(), passes(3.9)], []),
    "and then with advice":
        ({"connect_timeout_s": 4.0}, [fails_to_connect(), passes(3.9), passes(0.1)],
         server_given_up(4.0)),
    "a server that was never reached is not told that the agent leaves":
        ({"connect_timeout_s": 60.0}, [fails_to_connect(), signalled()],
         [Log(words.leaving.leaving("SIGTERM"), event="node_left"), SIGTERM_REPORT, Exit(START_AGAIN)]),
    "the first try may take its time, however short the limit": ({"connect_timeout_s": 0.0}, [passes(0.5)], []),
    "but with no time at all there is no other":
        ({"connect_timeout_s": 0.0}, [passes(0.5), fails_to_connect()],
         server_given_up(0.0)),
    "a port that accepts and says nothing is spoken of":
        ({"connect_timeout_s": 4.0}, [passes(2.0)], [warned(words.connection.not_answered_yet(SERVER))]),
    "and given up in time":
        ({"connect_timeout_s": 4.0}, [passes(2.0), passes(2.0)],
         server_given_up(4.0, f"HTTP: {words.connection.NO_ANSWER}", "HTTP")),
    **{f"the advice is about how far it got: {stage}":
        ({"connect_timeout_s": 1.0}, [fails_to_connect(error), passes(1.0)],
         server_given_up(1.0, error, stage))
       for stage in get_args(Stage)
       for error in [ServerUnavailable("full") if stage == "server" else Unreachable(stage, "no")]},
    "what waiting cannot heal is not waited for":
        ({"connect_timeout_s": 60.0}, [fails_to_connect(UNKNOWN)],
         gives_up(words.connection.server_unusable(SERVER, str(UNKNOWN), "TLS"), REFUSED)),
    "but it is by an agent that has been in":
        ({}, [RUNS, fails_to_connect(UNKNOWN)],
         [lost(has_workers=True, longest_s=inf, failure=UNKNOWN)]),
    "workers run on without the server for as long as it takes":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), passes(1e6)], []),
    "another cause is said":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), fails_to_connect(Unreachable("HTTP", "closed"))],
         [warned(words.connection.still_no_server(SERVER, "HTTP: closed"))]),
    "or for as long as the user says":
        ({"server_lost_timeout_s": 5.0}, [RUNS, fails_to_connect()],
         [lost(has_workers=True, longest_s=5.0)]),
    "and are stopped then":
        ({"server_lost_timeout_s": 5.0}, [RUNS, fails_to_connect(), passes(5.0)],
         [errs(LOST_5), STOP, WriteFailureReport(LOST_5, is_server_lost=True)]),
    "whereupon the agent exits":
        ({"server_lost_timeout_s": 5.0}, [RUNS, fails_to_connect(), passes(5.0), gone], [Exit(START_AGAIN)]),
    "workers that finish without the server are spoken of":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), passes(1000.0), succeeds],
         [report(), warned(words.connection.success_not_delivered(SERVER, 300.0))]),
    "and wait for it":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), passes(1e3), succeeds, passes(299.0)], []),
    "no longer than at the start":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), passes(1e3), succeeds, passes(300.0)],
         [WITHIN_300, ALL_SUCCEEDED, Exit(0)]),
    "a server that goes when the workers have finished is waited for":
        ({"connect_timeout_s": 300.0}, [RUNS, succeeds, passes(1e3), fails_to_connect()],
         [lost(has_workers=False, longest_s=300.0)]),
    "no longer either":
        ({"connect_timeout_s": 300.0}, [RUNS, succeeds, passes(1e3), fails_to_connect(), passes(300.0)],
         [WITHIN_300, ALL_SUCCEEDED, Exit(0)]),
    "an agent whose workers failed without the server is to be started again":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), fails, gone, passes(300.0)],
         server_given_up(300.0)),
    "a server that comes back is told":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), succeeds, passes(10.0), told(start(1), revision=1)],
         [reached(10.0), poll(revision=1)]),
    "a proxy that ends polls is named":
        ({}, [RUNS, is_cut(2.04, TIMED_OUT)], [warned_of_cut(2.0, TIMED_OUT)]),
    "but only once": ({}, [RUNS, is_cut(2.0, TIMED_OUT), is_cut(2.0, TIMED_OUT)], []),
    "one closed connection has many causes": ({}, [RUNS, is_cut(2.0, CLOSED)], []),
    "and so have two that were open for different times": ({}, [RUNS, is_cut(2.0, CLOSED), is_cut(3.0, CLOSED)], []),
    "but those that were open for the same time have one":
        ({}, [RUNS, is_cut(2.0, CLOSED), is_cut(2.1, CLOSED)], [warned_of_cut(2.1, CLOSED)]),
    "and the wait is over":
        ({"connect_timeout_s": 300.0},
         [RUNS, fails_to_connect(), succeeds, passes(10.0), told(start(1), revision=1), passes(1e6)], []),
    "a signal without the server exits by the workers' result":
        ({}, [RUNS, succeeds, fails_to_connect(), passes(CAUSE_TIMEOUT_S), signalled()],
         [LEAVING_SAID, leave(), Exit(0)]),
}
# fmt: on


FIT, UNFIT_CHECK = happens(NodeChecked()), "node a is unfit: --check disk says so"
unfit = happens(NodeChecked(UNFIT_CHECK))
CHECKED_RUN = [FIT, RUNS]
TOLD_UNFIT = [join("a.1", unfit=UNFIT_CHECK), leave(reason=UNFIT_CHECK, unfit=True)]
UNFIT_SAID = [errs(UNFIT_CHECK), WriteFailureReport(UNFIT_CHECK), Exit(NODE_UNFIT)]
OWN_END = finish(succeeded=False, failure=a_failure())
# fmt: off
CHECKS = {  # the events of an agent whose node is checked, and its actions at the last one
    "a node is checked before it joins": ([], [CheckNode()]),
    "and joins when it is fit": ([FIT], [join("a.1", after_round=0)]),
    "an unfit one takes no part, and the server is told": ([unfit], [*TOLD_UNFIT, *UNFIT_SAID]),
    "the server is not missed meanwhile": ([passes(300.0)], []),
    "a signal ends the wait": ([signalled()], [*SIGTERM, SIGTERM_REPORT, Exit(START_AGAIN)]),
    "it is checked again when its workers have stopped": ([*CHECKED_RUN, told(stop(1)), gone], [CheckNode()]),
    "the server hears meanwhile that it lives":
        ([*CHECKED_RUN, told(stop(1)), gone, told(stop(1), revision=2), passes(LEASE_S / HOLDS_PER_LEASE)],
         [poll(revision=2, hold=False)]),
    "and when it is fit it joins":
        ([*CHECKED_RUN, told(stop(1)), gone, told(stop(1), revision=2), FIT], [join(after_round=1)]),
    "a worker's failure has it checked at once": ([*CHECKED_RUN, fails, gone], [CheckNode(after_failure=True)]),
    "an unfit one tells the server why it leaves":
        ([*CHECKED_RUN, fails, gone, unfit], [leave(reason=UNFIT_CHECK, unfit=True), *UNFIT_SAID]),
    "a run that ends over this node's worker has it checked before the exit":
        ([*CHECKED_RUN, fails, told(OWN_END), gone], [CheckNode(after_failure=True)]),
    "whose code says that it is unfit":
        ([*CHECKED_RUN, fails, told(OWN_END), gone, unfit],
         [Log(words.leaving.error(UNFIT_CHECK), Level.ERROR, "node_unfit"), Exit(NODE_UNFIT)]),
    "or how the run ended": ([*CHECKED_RUN, fails, told(OWN_END), gone, FIT], [Exit(1)]),
    "a signal is not kept waiting for that": ([*CHECKED_RUN, fails, told(OWN_END), gone, signalled()], [Exit(1)]),
    "a run that ends over another node's does not": ([*CHECKED_RUN, told(FAILED), gone], [Exit(1)]),
    "a drained node is not checked":
        ([*CHECKED_RUN, told(drain()), gone], [DRAIN_DONE, leave(reason="drained"), Exit(START_AGAIN)]),
    "a node that has run nothing since need not be checked again":
        ([FIT, told(stop(1, AFTER_ELSEWHERE))],
         [Log(words.progress.round_over(1, AFTER_ELSEWHERE), event="round_opened"), join(after_round=1)]),
}
# fmt: on


FATAL = a_failure(verdict="fatal", rule="boom")
RETRY = a_failure(verdict="retry", rule="store")
MATCH = MatchRules(1, a_failure())
fatal, retry, no_rule = (happens(RulesMatched(1, failure)) for failure in (FATAL, RETRY, a_failure()))
# fmt: off
RULES = {  # the events of an agent with rules about failures, and its actions at the last one
    "a failure is matched while the siblings are stopped": ([RUNS, fails], [FAILED_SAID, MATCH, STOP]),
    **{f"and reported with the verdict: {failure.verdict}":
        ([RUNS, fails, happens(RulesMatched(1, failure))], [report(failure=failure)])
       for failure in (FATAL, RETRY, a_failure())},
    "it is reported once": ([RUNS, fails, fatal, fatal], []),
    "another round's verdict is none": ([RUNS, fails, happens(RulesMatched(2, FATAL))], []),

    # a stop, a drain or a signal comes while it is matched
    "a stop does not lose the verdict": ([RUNS, fails, told(stop(1)), gone, retry], [report(failure=RETRY)]),
    "and a join follows its report":
        ([RUNS, fails, told(stop(1)), told(stop(1)), gone, retry, reported], [join(after_round=1)]),
    "nor does a join that is due overtake the match": ([RUNS, fails, told(stop(1)), told(stop(1)), gone], []),
    "a drain does not lose the verdict": ([RUNS, fails, told(drain()), fatal], [report(failure=FATAL)]),
    "a drained agent leaves when it is there":
        ([RUNS, fails, told(drain()), gone, fatal],
         [report(failure=FATAL), leave(reason="drained"), Exit(START_AGAIN)]),
    "not before": ([RUNS, fails, told(drain()), gone], [DRAIN_DONE]),
    "a signal does not lose the verdict, and the leave follows its report":
        ([RUNS, fails, signalled(), gone, fatal], [report(failure=FATAL), leave(), Exit(START_AGAIN)]),
    "the workers of an agent that was signalled are not waited for longer":
        ([RUNS, fails, signalled(), fatal], [report(failure=FATAL), leave()]),

    # or had come just before
    "a failure that is heard of after a stop is matched": ([RUNS, told(stop(1)), fails], [MATCH]),
    "it counts if it is fatal":
        ([RUNS, told(stop(1)), fails, fatal], [FAILED_SAID, report(failure=FATAL)]),
    "and not if it is not": ([RUNS, told(stop(1)), fails, retry], []),
    "then the agent joins at once":
        ([RUNS, told(stop(1)), told(stop(1)), fails, gone, retry], [join(after_round=1)]),
    "one that is heard of after a drain counts if it is fatal":
        ([RUNS, told(drain()), fails, gone, fatal],
         [FAILED_SAID, report(failure=FATAL), leave(reason="drained"), Exit(START_AGAIN)]),
    "an agent that has told that it leaves reports nothing": ([RUNS, signalled(), fails], []),

    # the verdict no longer matters
    "the end of the run waits for no verdict": ([RUNS, fails, told(FAILED), gone], [Exit(1)]),
    "nor does the server's refusal": ([RUNS, fails, refused(Unauthorized("no")), gone], [Exit(REFUSED)]),
    "nor a crash": ([RUNS, fails, happens(Crashed("boom")), gone], [Exit(1)]),
    "an agent that crashes while it leaves says so":
        ([RUNS, fails, signalled(), gone, happens(Crashed("boom"))], [leave(), Exit(1)]),
    "a fenced agent joins again without it":
        ([RUNS, fails, refused(AgentFenced("gone")), gone], [join("a.2", returning=True)]),
    "and does not report it": ([RUNS, fails, refused(AgentFenced("gone")), fatal], []),
    "nor one that it hears of later": ([RUNS, refused(AgentFenced("gone")), fails], []),
}
# fmt: on


FATAL_42 = {"settings": RequestedSettings(fatal_exit_codes=(42,))}
BY_42 = a_failure(exit_code=42, cause="exit code 42")
SAID_42 = Log(words.progress.worker_failed(3, 1, 77, "a", "exit code 42", ""), Level.ERROR, "workers_failed")
fails_with_42 = happens(WorkerFailed(1, BY_42))
# fmt: off
BY_CODE = {  # the events of an agent in whose run exit code 42 is fatal, and its actions at the last one
    "it is reported": ([RUNS, fails_with_42], [SAID_42, report(failure=BY_42), STOP]),
    "also if it is heard of after a stop": ([RUNS, told(stop(1)), fails_with_42], [SAID_42, report(failure=BY_42)]),
    "and a join follows its report":
        ([RUNS, told(stop(1)), told(stop(1)), fails_with_42, gone, reported], [join(after_round=1, **FATAL_42)]),
    "not before": ([RUNS, told(stop(1)), told(stop(1)), fails_with_42, gone], []),
    "also after a drain": ([RUNS, told(drain()), fails_with_42], [SAID_42, report(failure=BY_42)]),
    "a fenced agent reports nothing of the workers that it had":
        ([RUNS, refused(AgentFenced("gone")), fails_with_42], []),
    "another exit code after a stop may be the stop's doing": ([RUNS, told(stop(1)), fails], []),
}
# fmt: on


def stories():
    for limits, table in (({}, STORIES), ({"checks": True}, CHECKS), ({"has_rules": True}, RULES), (FATAL_42, BY_CODE)):
        yield from (pytest.param(limits, *story, id=name) for name, story in table.items())
    yield from (pytest.param(*story, id=name) for name, story in OUTAGES.items())


@pytest.mark.parametrize(("limits", "events", "does"), list(stories()))
def test_actions_of_an_agent(limits, events, does):
    agent = Story(**limits)
    for event in events:
        event(agent)
    assert agent.effects == does
    assert Exit not in map(type, does) or agent.lasts is None


@pytest.mark.parametrize("verdict", ["count", "retry"])
def test_a_fatal_exit_code_after_a_stop_counts_even_if_the_rules_say_otherwise(verdict):
    agent, judged = Story(**FATAL_42, has_rules=True), replace(BY_42, verdict=verdict)
    for event in (RUNS, told(stop(1)), fails_with_42, happens(RulesMatched(1, judged))):
        event(agent)
    assert agent.effects == [SAID_42, report(failure=judged)]


def test_an_agent_that_slept_beyond_its_notice_leaves_even_if_it_hears_of_other_things_first():
    agent = Story(notice_s=2.0, stop_s=10.0)
    agent.is_told(start())
    agent.handle(Signalled("SIGTERM"))
    agent.now += 60.0
    agent.handle(WorkerFailed(1, a_failure()))
    assert [type(effect).__name__ for effect in agent.effects].count("LeaveRequest") == 1
    assert agent.machine.next_deadline() is None, "its time to leave does not lie behind it"
    agent.handle(WorkersStopped(1))
    assert agent.effects == [Exit(ExitCode.START_AGAIN)]


def test_workers_that_end_by_the_signal_that_their_agent_got_have_not_succeeded():
    agent = Story(notice_s=24.0, stop_s=30.0)
    agent.is_told(start())
    agent.handle(Signalled("SIGUSR1"))
    agent.handle(WorkersSucceeded(1))
    assert agent.effects == [Log(words.leaving.WORKERS_ENDED_AFTER_NOTICE, event="noticed")]


def test_workers_that_end_before_a_preemption_without_a_signal_have_succeeded():
    agent = Story(notice_s=24.0, stop_s=30.0)
    agent.is_told(start())
    agent.handle(Signalled("SIGTERM", "preempted: the file is there"))
    agent.handle(WorkersSucceeded(1))
    assert agent.effects == [report()]


def test_an_agent_of_a_node_unfit_by_the_network_test_exits_with_the_code_for_unfit_nodes():
    agent = Story()
    why = "node a is unfit: some evidence"
    agent.is_told(Drain(reason=why, remaining_s=0.0, unfit=True))
    said = Log(words.leaving.error(why), Level.ERROR, "node_unfit")
    assert agent.effects == [said, WriteFailureReport(why), leave(reason="found unfit"), Exit(NODE_UNFIT)]


JUST_BEFORE, LATER = CAUSE_TIMEOUT_S - 0.01, CAUSE_TIMEOUT_S


@pytest.mark.parametrize(
    ("after_s", "signal", "is_taken_back"),
    [
        (0.0, Signalled("SIGTERM"), True),
        (JUST_BEFORE, Signalled("SIGTERM"), True),
        (JUST_BEFORE, Signalled("SIGUSR1"), True),
        (LATER, Signalled("SIGTERM"), False),
        (0.0, Signalled("SIGTERM", "preempted: the file is there"), False),
        (0.0, Signalled("its workers are done"), False),
    ],
)
def test_a_signal_right_after_the_workers_success_takes_it_back(after_s, signal, is_taken_back):
    """A scheduler signals every process of a node: the workers may have exited 0 because of that signal."""
    agent = Story()
    for step in (RUNS, succeeds, passes(after_s), happens(signal)):
        step(agent)
    (left,) = (effect for effect in agent.effects if isinstance(effect, LeaveRequest))
    assert left.retracts_success == is_taken_back
    assert agent.effects[-1] == Exit(START_AGAIN)


def test_an_agent_without_a_server_takes_the_success_back_too():
    agent = Story()
    for step in (RUNS, succeeds, fails_to_connect(), passes(JUST_BEFORE), signalled()):
        step(agent)
    assert agent.effects[-1] == Exit(START_AGAIN)


def test_a_success_of_an_earlier_round_is_not_taken_back():
    agent = Story()
    for step in (RUNS, succeeds, told(stop(1)), told(stop(1), revision=2), told(start(2)), signalled(), gone):
        step(agent)
    assert agent.effects == [Exit(START_AGAIN)]


def excluded(until_s=60.0):
    return Wait(reason="standing by: node a is excluded: why", remaining_s=until_s, ending="uncordoned", excluded=True)


def test_an_excluded_agent_stands_by_or_makes_room_for_another_node():
    agent = Story()
    agent.is_told(excluded())
    assert agent.effects == [waits("standing by: node a is excluded: why; uncordoned in 60 s"), poll()]
    agent = Story(exits_when_excluded=True)
    agent.is_told(excluded())
    why = words.leaving.kept_out("standing by: node a is excluded: why")
    said = Log(words.leaving.error(why), Level.ERROR, "gave_up")
    assert agent.effects == [leave(reason="excluded"), said, WriteFailureReport(why), Exit(NODE_UNFIT)]


# fmt: off
MEMBERS = {  # the events, and whether the server counts the agent in after them
    "not before it has answered": ([], False),
    "not when it cannot be reached": ([fails_to_connect()], False),
    "while others are waited for, or a place": ([told(wait("standing by"))], True),
    "while workers run": ([RUNS], True),
    "while the server is gone": ([RUNS, fails_to_connect(), passes(1e3)], True),
    "while workers stop for the next round": ([RUNS, told(stop(1))], True),
    "between two rounds": (STOPPED, True),
    "while a node whose workers are done waits for the others": ([RUNS, succeeds], True),
    "not once it has been let go": ([RUNS, refused(AgentFenced("gone"))], False),
    "again when it has come back": ([RUNS, refused(AgentFenced("gone")), gone, told(wait())], True),
    "not when it is refused": ([refused(SettingsConflict("nnodes"))], False),
    "not when it leaves, while its workers still run": ([RUNS, signalled()], False),
    "not when the run is over": ([RUNS, succeeds, told(finish())], False),
    "not when the server tells it nothing new after that": ([RUNS, signalled(), told(wait())], False),
}
# fmt: on


@pytest.mark.parametrize(("events", "is_member"), MEMBERS.values(), ids=MEMBERS)
def test_when_an_agent_is_part_of_its_run(events, is_member):
    agent = Story()
    for event in events:
        event(agent)
    assert agent.machine.is_member == is_member


# Queries of the server.


def queries(*numbers: int) -> tuple[TailLog, ...]:
    return tuple(TailLog(number=n, round=1, remaining_s=5.0, rank=2, stream="stderr", lines=9) for n in numbers)


TAIL = LogTail(path="/stderr.log", text="Boom", offset=4)


def test_a_query_in_every_reply_is_answered_once_and_acknowledged_in_polls():
    agent = Story()
    agent.is_told(start(), queries=queries(7))
    assert Ask(*queries(7)) in agent.effects
    assert replace(poll(), asked=(7,)) in agent.effects
    agent.is_told(start(), queries=queries(7, 8))
    assert [effect for effect in agent.effects if isinstance(effect, Ask)] == [Ask(*queries(8))]
    assert replace(poll(revision=2), asked=(7, 8)) in agent.effects


def test_a_query_is_answered_beside_the_poll_unless_its_caller_has_gone():
    agent = Story()
    agent.is_told(start(), queries=queries(7, 8))
    agent.handle(Answer(7, TAIL))
    assert agent.effects == [AnswerRequest(run_id="run", agent_id="a.1", number=7, answer=TAIL)]
    agent.is_told(start())
    agent.handle(Answer(8, TAIL))
    assert agent.effects == []


@pytest.mark.parametrize(("slept_s", "said_s"), [(7.0, 0.0), (60.0, 60.0)])
def test_a_fenced_agent_reports_that_it_was_suspended(slept_s, said_s):
    """An agent with a lease of 9 s stops waiting for a poll after a silence of 6.75 s."""
    agent = Story()
    agent.is_told(start())
    agent.now += slept_s
    agent.handle(Answered(AgentFenced("gone")))
    assert Log(words.leaving.rejoining("gone", said_s), event="fenced") in agent.effects


def test_an_agent_that_was_cut_off_does_not_say_that_it_did_not_run():
    agent = Story()
    agent.is_told(start())
    agent.now += 6.75
    agent.handle(ConnectionFailed(Unreachable("HTTP", words.connection.NO_ANSWER)))
    agent.now += 60.0
    agent.handle(Answered(AgentFenced("gone")))
    assert Log(words.leaving.rejoining("gone", 0.0), event="fenced") in agent.effects


def test_an_agent_that_ends_or_is_fenced_answers_nothing_of_before():
    agent = Story()
    agent.is_told(start(), queries=queries(7))
    agent.handle(Answered(AgentFenced("it has left")))
    agent.handle(Answer(7, TAIL))
    assert agent.effects == []
    agent = Story()
    agent.is_told(finish(), queries=queries(7))
    assert not [effect for effect in agent.effects if isinstance(effect, Ask)]
