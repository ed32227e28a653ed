"""An agent's life: joining, running, stopping, coming back, ending."""

from operator import methodcaller

import pytest
from rdzv_protocol.errors import (
    AgentFenced,
    NodeRankTaken,
    RunSucceeded,
    ServerUnavailable,
    SettingsConflict,
    Unauthorized,
)
from rdzv_protocol.messages import LeaveRequest
from rdzv_protocol.timing import HOLDS_PER_LEASE

from node_agent.core.backoff import HINTS, Unreachable
from node_agent.core.effects import Exit, Level, Say, StartWorkers, StopWorkers, WriteFailureReport
from node_agent.core.events import Started, TimePassed, WorkerFailed, WorkersStopped
from tests.unit.node_agent.story import (
    LEASE_S,
    Story,
    a_failure,
    an_assignment,
    finish,
    join,
    leave,
    poll,
    report,
    running,
    start,
    stop,
    wait,
)

STOP, KILL = StopWorkers("SIGTERM"), StopWorkers("SIGINT", kill=True)
FAILED_SAID = Say("worker rank 3 (local rank 1, pid 77) on node a failed: exit code 5")
STOPPING_SAID = Say("stopping the workers of round 1: node b left: SIGTERM")
SUCCEEDED_SAID = Say("run succeeded: all workers of 3 nodes exited 0", Level.ROUTINE)
FAILED = finish(succeeded=False, failure=a_failure(node_id="b"))
SPENT = [Say("run failed: spent"), WriteFailureReport("spent", FAILED)]
SIGTERM = [Say("SIGTERM: leaving the run"), leave()]
SIGTERM_REPORT = WriteFailureReport("SignalException: the agent got SIGTERM")
AFTER_ELSEWHERE = "worker rank 9 on node b failed: exit code 1"


def told(directive, **more):
    return methodcaller("is_told", directive, **more)


def refused(error):
    return methodcaller("is_refused", error)


def signalled(name="SIGTERM"):
    return methodcaller("is_signalled", name)


FAILS, SUCCEEDS = methodcaller("workers_fail"), methodcaller("workers_succeed")
GONE, REPORT_REFUSED = methodcaller("workers_are_gone"), methodcaller("gives_up", "too long")
RUNS = told(start(1))
STOPPED = [RUNS, told(stop(1)), GONE, told(stop(1), revision=2)]
"""Told to stop in round 1, and joining the next one."""

# fmt: off
STORIES = {  # what happens, and what the agent does at the last of it
    # joining
    "it joins as soon as it is up": ([], [join("a.1", after_round=0)]),
    "it says what it waits for, and polls":
        ([told(wait("for 1 more"))], [Say("for 1 more"), poll(revision=1)]),
    "a warning of the server is said":
        ([told(wait("for a"), warning="look")], [Say("look", Level.WARNING), Say("for a"), poll(revision=1)]),
    "a warning of the server is said once":
        ([told(wait("for a"), warning="look"), told(wait("for a"), warning="look")], [poll(revision=2)]),
    "what it waits for is not said again when only the countdown has changed":
        ([told(wait("1 of 2 joined (a)", 600.0)), told(wait("1 of 2 joined (a)", 590.0))], [poll(revision=2)]),
    "what it waits for is said again when it has changed":
        ([told(wait("for 2", 600.0)), told(wait("for 1", 600.0))],
         [Say("for 1; gives up in 600 s"), poll(revision=2)]),
    "a reply that brings nothing new is answered with the next poll":
        ([told(wait()), told(wait(), revision=1)], [poll(revision=1)]),
    "a round starts the workers and says their place":
        ([RUNS], [Say("round 1: node 1 of 3, ranks 2-5 of 10, master 10.0.0.1:40001, restart 0 of 3", Level.ROUTINE),
                  StartWorkers(an_assignment(1)), poll(revision=1)]),
    "only one request is under way": ([methodcaller("handle", TimePassed()), methodcaller("handle", Started())], []),
    "a round that was over before the agent heard of it is joined after":
        ([told(stop(1, AFTER_ELSEWHERE))],
         [Say(f"round 1 is over before it began here: {AFTER_ELSEWHERE}"), join(after_round=1)]),

    # running
    "an agent whose workers run keeps polling": ([RUNS, told(start(1), revision=1)], [poll(revision=1)]),
    "workers that run are not started again": ([told(start(2)), told(start(2))], [poll(revision=2)]),
    "nor for an earlier round": ([told(start(2)), told(start(1))], [poll(revision=2)]),
    "a round that it was told before does not start again": ([*STOPPED, told(start(1))], [poll(revision=3)]),
    "but the next one does":
        ([*STOPPED, told(start(1)), told(start(2))],
         [Say("round 2: node 1 of 3, ranks 2-5 of 10, master 10.0.0.1:40002, restart 1 of 3", Level.ROUTINE),
          StartWorkers(an_assignment(2)), poll(revision=4)]),
    **{f"a {type(directive).__name__} older than the last reply changes nothing":
        ([told(start(1), revision=7), told(directive, revision=6)], [poll(revision=7)])
       for directive in (wait("old"), stop(1), finish(), start(3))},

    # succeeding
    "success is reported and the run waited for": ([RUNS, SUCCEEDS], [report()]),
    "success is reported once": ([RUNS, SUCCEEDS, SUCCEEDS], []),
    "an agent whose run succeeds exits 0": ([RUNS, SUCCEEDS, told(finish())], [SUCCEEDED_SAID, Exit(0)]),
    "a failure elsewhere restarts an agent that has finished":
        ([RUNS, SUCCEEDS, told(stop(1, AFTER_ELSEWHERE))],
         [Say(f"stopping the workers of round 1: {AFTER_ELSEWHERE}"), join(after_round=1)]),
    **{f"an end of another round's workers is not reported: {happens}":
        ([told(start(2)), methodcaller(happens, round=1)], []) for happens in ("workers_succeed", "workers_fail")},

    # failing
    "a failure is reported and the siblings are stopped":
        ([RUNS, FAILS], [FAILED_SAID, report(failure=a_failure()), STOP]),
    "a second failure of a round is not reported": ([RUNS, FAILS, FAILS], []),
    "after a failure it waits for the server to say that there is a next round": ([RUNS, FAILS, GONE], []),
    "and joins when that has come": ([RUNS, FAILS, GONE, told(stop(1))], [STOPPING_SAID, join(after_round=1)]),
    "siblings that are still there are not stopped twice":
        ([RUNS, FAILS, told(stop(1))], [STOPPING_SAID, poll(revision=2, hold=False)]),
    "and when they are gone it joins":
        ([RUNS, FAILS, told(stop(1)), told(stop(1), revision=2), GONE], [join(after_round=1)]),
    "a failure is said once":
        ([RUNS, FAILS, GONE, told(stop(1, a_failure().sentence))],
         [Say("stopping the workers of round 1"), join(after_round=1)]),
    "a failed run ends with the evidence of it": ([RUNS, FAILS, GONE, told(FAILED)], [*SPENT, Exit(1)]),
    "the workers are stopped before the evidence is left": ([RUNS, told(FAILED)], [SPENT[0], STOP, SPENT[1]]),

    # stopping
    "a stop stops the workers and says why":
        ([RUNS, told(stop(1))], [STOPPING_SAID, STOP, poll(revision=2, hold=False)]),
    "a stop of another round stops nobody": ([told(start(2)), told(stop(1))], [poll(revision=2)]),
    "a repeated stop says and stops nothing more": ([RUNS, told(stop(1)), told(stop(1), revision=2)], []),
    "a worker that fails while it is stopped is not reported": ([RUNS, told(stop(1)), FAILS], []),
    "the connection is free for the join the moment the last worker is gone":
        ([RUNS, told(stop(1)), told(stop(1), revision=2), GONE], [join(after_round=1)]),
    "a join that is due while a keep-alive is under way waits": ([RUNS, told(stop(1)), GONE], []),
    "and follows its answer": (STOPPED, [join(after_round=1)]),
    "no round starts before the agent has joined it":
        ([RUNS, told(stop(1)), GONE, told(start(2))], [join(after_round=1)]),
    "workers of an earlier round that are gone are no news":
        ([*STOPPED, told(start(2)), told(stop(2)), methodcaller("workers_are_gone", round=1),
          told(stop(2), revision=4)], []),
    "a stop that was obeyed before is no reason to join again":
        ([*STOPPED, told(stop(1), revision=2)], [poll(revision=2)]),

    # fenced
    "a fenced agent stops its workers":
        ([told(start(4)), refused(AgentFenced("gone"))], [Say("gone; joining anew"), STOP]),
    "and joins anew as another": ([told(start(4)), refused(AgentFenced("gone")), GONE], [join("a.2", returning=True)]),
    "it takes whatever its new run tells it":
        ([told(start(9), revision=50), refused(AgentFenced("gone")), GONE, told(start(1), revision=1)],
         [Say("round 1: node 1 of 3, ranks 2-5 of 10, master 10.0.0.1:40001, restart 0 of 3", Level.ROUTINE),
          StartWorkers(an_assignment(1)), poll("a.2", revision=1)]),
    "without workers it joins anew at once":
        ([refused(AgentFenced("gone"))], [Say("gone; joining anew"), join("a.2", returning=True)]),
    "fenced while its workers stop, it does not stop them twice":
        ([RUNS, told(stop(1)), refused(AgentFenced("gone"))], [Say("gone; joining anew")]),

    # refused
    "an agent that comes after the success exits 0":
        ([refused(RunSucceeded("run r has already succeeded"))], [Say("run r has already succeeded"), Exit(0)]),
    **{f"an agent that may not take part exits 2 and says why: {error.code}":
        ([refused(error("no"))], [Say("error: no"), WriteFailureReport(f"{error.__name__}: no"), Exit(2)])
       for error in (SettingsConflict, NodeRankTaken, Unauthorized)},
    "a refusal stops the workers first":
        ([RUNS, refused(Unauthorized("no"))], [Say("error: no"), STOP, WriteFailureReport("Unauthorized: no")]),
    "and then the agent exits": ([RUNS, refused(Unauthorized("no")), GONE], [Exit(1)]),
    "a fenced agent that is not let in again has started workers all the same":
        ([RUNS, refused(AgentFenced("gone")), GONE, refused(NodeRankTaken("no"))],
         [Say("error: no"), WriteFailureReport("NodeRankTaken: no"), Exit(1)]),
    "a report that the server refuses ends the agent": ([RUNS, FAILS, REPORT_REFUSED, GONE], [Exit(1)]),
    "an agent that is ending keeps its exit code when its last word is refused":
        ([RUNS, signalled(), REPORT_REFUSED, GONE], [Exit(1)]),

    # ending
    "an end of the run stops what still runs": ([RUNS, told(finish())], [SUCCEEDED_SAID, STOP]),
    "and exits by the run's end": ([RUNS, told(finish()), GONE], [Exit(0)]),
    "also if it has failed": ([RUNS, told(FAILED), GONE], [Exit(1)]),
    "a standby exits with the run": ([told(wait("standing by")), told(finish())], [SUCCEEDED_SAID, Exit(0)]),
    **{f"{name} makes the agent leave and stop its workers with the same signal":
        ([RUNS, signalled(name)],
         [Say(f"{name}: leaving the run"), leave(reason=name), StopWorkers(name),
          WriteFailureReport(f"SignalException: the agent got {name}")]) for name in ("SIGTERM", "SIGINT")},
    "and exits when they are gone": ([RUNS, signalled(), GONE], [Exit(1)]),
    "a second signal kills the workers":
        ([RUNS, signalled("SIGINT"), signalled("SIGINT")], [Say("SIGINT again: killing the workers"), KILL]),
    "a signal after the end of the run kills the workers":
        ([RUNS, told(finish()), signalled("SIGINT")], [Say("SIGINT again: killing the workers"), KILL]),
    "an agent without workers leaves at once": ([signalled()], [*SIGTERM, SIGTERM_REPORT, Exit(1)]),
    "an agent that was signalled while its workers stop does not signal them twice":
        ([RUNS, told(stop(1)), signalled()], [*SIGTERM, SIGTERM_REPORT]),
    **{f"an agent that leaves does as no server says: {type(directive).__name__}":
        ([RUNS, signalled(), told(directive)], [])
       for directive in (wait(), start(2), stop(1), finish())},
    "an agent that leaves heeds no refusal": ([RUNS, signalled(), refused(RunSucceeded("over"))], []),
    **{f"after the exit nothing happens: {name}": ([RUNS, SUCCEEDS, told(finish()), happens], [])
       for name, happens in {
           "start": told(start(2)),
           "fenced": refused(AgentFenced("gone")),
           "signal": signalled(),
           "gave up": methodcaller("gives_up"),
           "time": methodcaller("handle", TimePassed()),
           "failure": methodcaller("handle", WorkerFailed(1, a_failure())),
           "stopped": methodcaller("handle", WorkersStopped(1)),
       }.items()},
}
# fmt: on


@pytest.mark.parametrize(("happens", "does"), STORIES.values(), ids=STORIES)
def test_what_an_agent_does(happens, does):
    agent = Story()
    for event in happens:
        event(agent)
    assert agent.effects == does
    assert Exit not in map(type, does) or agent.lasts is None


def test_while_workers_stop_the_server_hears_at_once_and_then_three_times_in_a_lease():
    agent = running()
    agent.is_told(stop(1))
    assert agent.sent == [poll("a.1", revision=2, hold=False)]
    assert agent.lasts is None, "an answer is due"
    for _ in range(4):
        agent.is_told(stop(1), revision=2)
        assert agent.effects == []
        assert agent.lasts == LEASE_S / HOLDS_PER_LEASE
        agent.deadline_comes()
        assert agent.effects == [poll("a.1", revision=2, hold=False)]
    agent.is_told(stop(1), revision=2)
    agent.workers_are_gone()
    assert agent.lasts is None, "it joins, and has nothing to keep alive"


def test_a_fenced_agent_has_nothing_to_keep_alive():
    agent = running()
    agent.is_refused(AgentFenced("gone"))
    assert agent.lasts is None


# The server comes and goes.

REFUSED = "connect: 10.0.0.1: Connection refused"


def warnings(agent: Story) -> list[str]:
    return [effect.text for effect in agent.did(Say) if effect.level is Level.WARNING]


def test_a_server_that_is_not_there_yet_is_said_once_and_so_is_its_arrival():
    agent = Story(connect_timeout_s=60.0)
    agent.cannot_reach_the_server()
    assert agent.said == [f"cannot reach rdzv-server at host:1 yet ({REFUSED}); trying for 60 s"]
    agent.time_passes(3.0)
    agent.is_told(wait("waiting for 1 more node"))
    assert agent.said == ["reached rdzv-server at host:1 after 3.0 s", "waiting for 1 more node"]


def test_a_server_that_never_answers_is_given_up_in_time_with_advice():
    agent = Story(connect_timeout_s=4.0)
    agent.cannot_reach_the_server()
    agent.time_passes(3.9)
    assert agent.effects == []
    agent.time_passes(0.1)
    error = (
        f"no rdzv-server at host:1 within 4 s ({REFUSED}): check that rdzv-server runs there and that no firewall is"
    )
    assert agent.said == [f"error: {error} between"]
    assert agent.did(WriteFailureReport) == [WriteFailureReport(f"{error} between", is_server_lost=True)]
    assert agent.did(Exit) == [Exit(2)]


def test_with_no_time_at_all_there_is_one_try():
    agent = Story(connect_timeout_s=0.0)
    agent.time_passes(0.5)
    assert agent.effects == []
    agent.cannot_reach_the_server()
    assert agent.said == [f"error: no rdzv-server at host:1 within 0 s ({REFUSED}): {HINTS['connect']}"]
    assert agent.did(Exit) == [Exit(2)]


def test_a_port_that_accepts_and_says_nothing_is_spoken_of_and_given_up_in_time():
    agent = Story(connect_timeout_s=4.0)
    agent.time_passes(2.0)
    assert agent.said == ["waiting for rdzv-server at host:1 to answer"]
    agent.time_passes(2.0)
    assert agent.said == [
        "error: no rdzv-server at host:1 within 4 s (HTTP: no answer): check that this port is rdzv-server's"
    ]
    assert agent.did(Exit) == [Exit(2)]


@pytest.mark.parametrize("stage", ["name", "connect", "TLS", "HTTP", "server", "leader"])
def test_the_advice_is_about_how_far_it_got(stage):
    agent = Story(connect_timeout_s=1.0)
    agent.cannot_reach_the_server(ServerUnavailable("full") if stage == "server" else Unreachable(stage, "no"))
    agent.time_passes(1.0)
    assert agent.said[0].endswith(f": {HINTS[stage]}")


def test_what_waiting_cannot_heal_is_not_waited_for():
    agent = Story(connect_timeout_s=60.0)
    agent.cannot_reach_the_server(Unreachable("TLS", "of an unknown authority", is_final=True))
    assert agent.said == ["error: cannot use rdzv-server at host:1 (TLS: of an unknown authority)"]
    assert agent.did(Exit) == [Exit(2)]


def test_what_waiting_cannot_heal_is_borne_by_who_has_been_in():
    agent = running()
    agent.cannot_reach_the_server(Unreachable("TLS", "of an unknown authority", is_final=True))
    assert agent.said == [
        "lost rdzv-server at host:1 (TLS: of an unknown authority); workers keep running, trying again"
    ]


def test_workers_run_on_without_the_server_for_as_long_as_it_takes():
    agent = running(connect_timeout_s=300.0)
    agent.cannot_reach_the_server()
    assert agent.said == [f"lost rdzv-server at host:1 ({REFUSED}); workers keep running, trying again"]
    agent.time_passes(1e6)
    assert agent.effects == []
    agent.cannot_reach_the_server(Unreachable("HTTP", "closed"))
    assert agent.said == ["still no rdzv-server at host:1 (HTTP: closed)"]


def test_or_for_as_long_as_the_user_says():
    agent = running(server_lost_timeout_s=5.0)
    agent.cannot_reach_the_server()
    assert agent.said[0].endswith("workers keep running, trying again for 5 s")
    agent.time_passes(5.0)
    assert agent.did(StopWorkers) == [StopWorkers("SIGTERM")]
    agent.workers_are_gone()
    assert agent.effects == [Exit(1)]


def test_workers_that_finish_without_the_server_are_spoken_of_and_wait_no_longer_than_at_the_start():
    agent = running(connect_timeout_s=300.0)
    agent.cannot_reach_the_server()
    agent.time_passes(1000.0)
    agent.workers_succeed()
    assert agent.said == ["all workers exited 0, but rdzv-server at host:1 is out of reach: waiting for it for 300 s"]
    agent.time_passes(299.0)
    assert agent.effects == []
    agent.time_passes(1.0)
    assert "no rdzv-server at host:1 within 300 s" in agent.said[0]
    assert agent.said[1] == "all workers of this node exited 0; how the run ended is not known"
    assert (agent.did(Exit), agent.did(WriteFailureReport)) == ([Exit(0)], [])


def test_a_server_that_goes_when_the_workers_have_finished_is_waited_for_no_longer_either():
    agent = running(connect_timeout_s=300.0)
    agent.workers_succeed()
    agent.time_passes(1000.0)
    agent.cannot_reach_the_server()
    assert agent.said == [f"lost rdzv-server at host:1 ({REFUSED}); trying again for 300 s"]
    agent.time_passes(300.0)
    assert agent.did(Exit) == [Exit(0)]


def test_an_agent_whose_workers_failed_without_the_server_exits_with_1_in_the_end():
    agent = running(connect_timeout_s=300.0)
    agent.cannot_reach_the_server()
    agent.workers_fail()
    agent.workers_are_gone()
    agent.time_passes(300.0)
    assert agent.did(Exit) == [Exit(1)]


def test_a_server_that_comes_back_is_told_and_the_wait_is_over():
    agent = running(connect_timeout_s=300.0)
    agent.cannot_reach_the_server()
    agent.workers_succeed()
    agent.time_passes(10.0)
    agent.is_told(start(1), revision=agent.revision)
    assert warnings(agent) == ["reached rdzv-server at host:1 after 10.0 s"]
    agent.time_passes(1e6)
    assert agent.did(Exit) == []


def test_a_signal_without_the_server_exits_by_the_workers_result():
    agent = running()
    agent.workers_succeed()
    agent.cannot_reach_the_server()
    agent.is_signalled()
    assert agent.did(LeaveRequest) == [leave()]
    assert (agent.did(Exit), agent.did(WriteFailureReport)) == ([Exit(0)], [])
