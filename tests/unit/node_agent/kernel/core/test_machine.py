"""An agent from start to end: it joins, runs, stops, returns, ends."""

from functools import partial

import pytest
from msgspec.structs import replace
from rdzv_protocol.errors import (
    AgentFenced,
    NodeRankTaken,
    OutcomeUnknown,
    RunSucceeded,
    SettingsConflict,
    Unauthorized,
)
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import Drain, LeaveRequest, RunTime, SuspectRequest, Wait
from rdzv_protocol.timing import HOLDS_PER_LEASE

from node_agent import words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.core.effects import (
    Exit,
    Level,
    Log,
    StartWorkers,
    StopWorkers,
    WriteFailureReport,
)
from node_agent.kernel.core.events import (
    ConnectionFailed,
    Event,
    GaveUp,
    Reported,
    ServerRefused,
    Signalled,
    Started,
    Suspected,
    TimePassed,
    WorkerFailed,
    WorkersStopped,
    WorkersSucceeded,
)
from node_agent.kernel.core.machine import ANSWER_S, CAUSE_TIMEOUT_S, NOT_STARTED
from tests.unit.node_agent.kernel.core.steps import (
    AFTER_ELSEWHERE,
    DRAIN_DONE,
    FAILED,
    FAILED_SAID,
    KILL,
    NODE_UNFIT,
    REFUSED,
    RUNS,
    SIGTERM,
    SIGTERM_REPORT,
    START_AGAIN,
    STOP,
    check_actions,
    drains,
    fails,
    fails_to_connect,
    gone,
    happens,
    passes,
    refused,
    reported,
    signalled,
    succeeds,
    told,
    waits,
)
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

STOPPING_SAID = Log(words.progress.stopping_workers(1, "node b left: SIGTERM"), event="round_opened")
SUCCEEDED_SAID = Log(words.progress.run_succeeded("all workers of 3 nodes exited 0"), Level.ROUTINE, "run_succeeded")
WARNED = Log("look", Level.WARNING, "warned")
REACHED_SAID = Log(words.connection.server_reached("host:1", 5), Level.WARNING, "server_reached")
STUCK = Suspected(1, "progress", "stuck", (2,), WARNED, silent_s=9.0, limit_s=8.0)
TOLD_OF_HANG = SuspectRequest(
    run_id="run",
    agent_id="a.1",
    round=1,
    source="progress",
    reason="stuck",
    ranks=(2,),
    silent_s=9.0,
    limit_s=8.0,
    number=1,
)
OVER_SAID = Log("run r has already succeeded", Level.ROUTINE, "run_succeeded")
REFUSED_SAID = Log(words.leaving.error("no"), Level.ERROR, "refused")
ANEW = Log(words.leaving.rejoining("gone", 0.0), event="fenced")
PREEMPTED = happens(Signalled("SIGTERM", "preempted: the file is there"))
ALREADY_SAID = Log(words.leaving.workers_end_already("SIGINT"), event="node_left")
KILLING_SAID = Log(words.leaving.killing_workers("SIGINT"), event="node_left")
begins = partial(Log, level=Level.ROUTINE, event="round_started")
SPENT = [Log(words.progress.run_failed("spent"), Level.ERROR, "run_failed"), WriteFailureReport("spent", FAILED)]
DRAIN_SAID = Log(words.leaving.drained("node a is drained", 60.0, has_workers=True), event="node_drained")
DRAIN_SAID_IDLE = drains(words.leaving.drained("node a is drained", 60.0, has_workers=False))
DRAIN_REPORT = WriteFailureReport("node a is drained")
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
    restarts = {"restarts": round_ - 1, "used": round_ - 1, "most": 3}
    return words.progress.round_started(round_, 1, 3, **ranks, master=master, **restarts)


def gone_told(seconds):
    """The workers have ended, one perhaps by a signal that the agent may also get, within this many seconds."""
    return lambda agent: agent.handle(WorkersStopped(1, agent.now + seconds))


STOPPED = [RUNS, told(stop(1)), gone, told(stop(1), revision=2)]
"""Steps of an agent that was told to stop in round 1, and joins the next one."""

# fmt: off
STORIES = {  # the events, and the agent's actions at the last one
    # joining
    "it joins as soon as it is up": ([], [join("a.1", after_round=0)]),
    "it says what it waits for, and polls":
        ([told(wait("for 1 more"))], [waits("for 1 more"), poll(revision=1)]),
    "the agent logs a warning of the server":
        ([told(wait("for a"), warning="look")], [WARNED, waits("for a"), poll(revision=1)]),
    "the agent logs a warning of the server once":
        ([told(wait("for a"), warning="look"), told(wait("for a"), warning="look")], [poll(revision=2)]),
    "what it waits for is not said again when only the countdown has changed":
        ([told(wait("1 of 2 joined (a)", 600.0)), told(wait("1 of 2 joined (a)", 590.0))], [poll(revision=2)]),
    "the agent logs what it waits for again when it has changed":
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
    "success is reported again after an outage": (
        [RUNS, succeeds, fails_to_connect(), passes(5), told(start(1))],
        [REACHED_SAID, report(), poll(revision=2)],
    ),
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
    "the agent logs a failure once":
        ([RUNS, fails, reported, gone, told(stop(1, a_failure().sentence))],
         [Log(words.progress.stopping_workers(1, ""), event="round_opened"), join(after_round=1)]),
    "a failed run ends with the evidence of it": ([RUNS, fails, gone, told(FAILED)], [*SPENT, Exit(1)]),
    "the workers are stopped before the evidence is left": ([RUNS, told(FAILED)], [SPENT[0], STOP, SPENT[1]]),

    # stopping
    "a stop stops the workers and says why":
        ([RUNS, told(stop(1))], [STOPPING_SAID, STOP, poll(revision=2, hold=False)]),
    "a stop of another round stops no worker": ([told(start(2)), told(stop(1))], [poll(revision=2)]),
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
    "ranks that run may, and the agent tells people and the server": ([RUNS, happens(STUCK)], [WARNED, TOLD_OF_HANG]),
    "those of an earlier round are not meant":
        ([RUNS, happens(replace(STUCK, round=0))], []),

    # fenced
    "a fenced agent stops its workers":
        ([told(start(4)), refused(AgentFenced("gone"))], [ANEW, STOP]),
    "and joins again as another": ([told(start(4)), refused(AgentFenced("gone")), gone], [join("a.2", returning=True)]),
    "it follows any directive of its new run":
        ([told(start(9), revision=50), refused(AgentFenced("gone")), gone, told(start(1), revision=1)],
         [begins(placed(1)),
          StartWorkers(an_assignment(1)), poll("a.2", revision=1)]),
    "without workers it joins again at once":
        ([refused(AgentFenced("gone"))], [ANEW, join("a.2", returning=True)]),
    "a fenced agent that was the only one does not repeat a run that its workers have finished":
        ([told(start(group_world_size=1)), succeeds, refused(AgentFenced("gone"))],
         [Log(words.leaving.run_done("gone"), Level.WARNING, "fenced"), Exit(0)]),
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
    **{f"a signal leaves workers their grace if they end already: {name}":
        ([RUNS, told(ending), signalled("SIGINT")], [ALREADY_SAID])
       for name, ending in {"the run is over": finish(), "the run has failed": finish(succeeded=False)}.items()},
    "a signal after a preemption, such as that of the machine's shutdown, leaves them their grace, too":
        ([RUNS, PREEMPTED, signalled("SIGINT")], [ALREADY_SAID]),
    "and a further one kills them":
        ([RUNS, PREEMPTED, signalled("SIGINT"), signalled("SIGINT")], [KILLING_SAID, KILL]),
    "and a second one kills them":
        ([RUNS, told(finish()), signalled("SIGINT"), signalled("SIGINT")], [KILLING_SAID, KILL]),
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


def test_a_fenced_agent_has_no_lease():
    agent = Story()
    agent.is_told(start(1))
    refused(AgentFenced("gone"))(agent)
    assert agent.lasts is None


@pytest.mark.parametrize(("events", "does"), STORIES.values(), ids=STORIES)
def test_actions_of_an_agent(events, does):
    check_actions(events, does)


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


LOST = ConnectionFailed(Unreachable("connect", "refused"))


def leaves_without_workers_and_server(nodes: int, *events: Event) -> Story:
    """Return an agent of a round of so many nodes that leaves, after these events."""
    agent = Story(notice_s=24.0, stop_s=30.0)
    agent.is_told(start(group_world_size=nodes))
    agent.handle(Signalled("SIGTERM"))
    for event in events:
        assert Exit(ExitCode.START_AGAIN) not in agent.effects
        agent.handle(event)
    return agent


EITHER_FIRST = pytest.mark.parametrize(
    "events", [(LOST, WorkersSucceeded(1)), (WorkersSucceeded(1), LOST)], ids=["server", "workers"]
)


@EITHER_FIRST
def test_an_agent_alone_leaves_at_once_if_neither_workers_nor_a_server_are_left(events):
    """A scheduler that ends a job signals its server, too. Otherwise the agent would hold its node until SIGKILL."""
    agent = leaves_without_workers_and_server(1, *events)
    assert Exit(ExitCode.START_AGAIN) in agent.effects


@EITHER_FIRST
def test_an_agent_of_several_nodes_stays_for_the_server_as_long_as_a_lease(events):
    """The server may return within that time. Without this agent it would end the round, and others still save."""
    agent = leaves_without_workers_and_server(2, *events)
    began = agent.now
    agent.now = began + LEASE_S - 0.1
    agent.handle(LOST)
    assert not any(isinstance(effect, Exit) for effect in agent.effects)
    assert agent.machine.next_deadline() == began + LEASE_S
    agent.now = began + LEASE_S
    agent.handle(TimePassed())
    assert Exit(ExitCode.START_AGAIN) in agent.effects


def test_a_server_that_returns_begins_the_lease_anew():
    agent = leaves_without_workers_and_server(2, WorkersSucceeded(1), LOST)
    agent.now += LEASE_S - 0.1
    agent.is_told(start(group_world_size=2))
    agent.now += LEASE_S
    agent.handle(LOST)
    assert not any(isinstance(effect, Exit) for effect in agent.effects)


def test_a_server_that_answers_that_it_cannot_serve_is_not_gone():
    agent = leaves_without_workers_and_server(2, WorkersSucceeded(1), LOST)
    agent.now += LEASE_S - 0.1
    agent.handle(ServerRefused())
    agent.now += LEASE_S - 0.1
    agent.handle(LOST)
    assert not any(isinstance(effect, Exit) for effect in agent.effects)


def test_an_agent_does_not_stay_beyond_its_notice_for_a_server():
    agent = leaves_without_workers_and_server(2, WorkersSucceeded(1))
    agent.now += 24.0
    agent.handle(LOST)
    agent.now += ANSWER_S
    agent.handle(TimePassed())
    assert Exit(ExitCode.START_AGAIN) in agent.effects


def test_workers_that_save_after_a_notice_may_do_so_without_a_server():
    agent = Story(notice_s=24.0, stop_s=30.0)
    agent.is_told(start())
    agent.handle(Signalled("SIGTERM"))
    agent.handle(ConnectionFailed(Unreachable("connect", "refused")))
    assert not any(isinstance(effect, StopWorkers | Exit) for effect in agent.effects)


def test_workers_that_end_before_a_preemption_without_a_signal_have_succeeded():
    agent = Story(notice_s=24.0, stop_s=30.0)
    agent.is_told(start())
    agent.handle(Signalled("SIGTERM", "preempted: the file is there"))
    agent.handle(WorkersSucceeded(1))
    assert agent.effects == [report()]
    agent.handle(ConnectionFailed(Unreachable("connect", "refused")))
    assert not any(isinstance(effect, Exit) for effect in agent.effects), "the server may return and take the report"


def test_a_signal_after_a_preemption_does_not_end_the_notice_and_a_second_one_does():
    agent = Story(notice_s=24.0, stop_s=30.0)
    for step in (RUNS, PREEMPTED):
        step(agent)
    agent.handle(Signalled("SIGTERM"))
    assert agent.effects == [Log(words.leaving.leaves_already("SIGTERM"), event="node_left")]
    agent.handle(Signalled("SIGTERM"))
    assert StopWorkers("SIGTERM", grace_s=30.0) in agent.effects


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


@pytest.mark.parametrize("is_reported", [False, True], ids=["held", "reported"])
def test_an_agent_that_counts_exit_codes_of_0_as_an_eviction_says_so(is_reported):
    agent = Story(stop_s=30.0)
    for step in (RUNS, succeeds) if is_reported else (RUNS,):
        step(agent)
    agent.handle(Signalled("SIGTERM", succeeded_ago_s=0.05))
    assert Log(words.leaving.leaving_after_success("SIGTERM", 0.05), event="node_left") in agent.effects


def test_a_success_that_counts_is_not_called_an_eviction():
    agent = Story(stop_s=30.0)
    for step in (RUNS, succeeds, passes(LATER)):
        step(agent)
    agent.handle(Signalled("SIGTERM", succeeded_ago_s=LATER))
    assert Log(words.leaving.leaving("SIGTERM"), event="node_left") in agent.effects


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
    assert agent.effects == [waits(excluded().sentence), poll()]
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
