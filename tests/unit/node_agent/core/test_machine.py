"""An agent's life: joining, running, stopping, coming back, ending."""

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

# Joining.


def test_an_agent_joins_as_soon_as_it_is_up():
    assert Story().effects == [join("a.1", after_round=0)]


def test_an_agent_that_waits_says_what_for_and_polls():
    agent = Story()
    agent.is_told(wait("waiting for 1 more node"))
    assert agent.effects == [Say("waiting for 1 more node"), poll("a.1", revision=1, hold=True)]


def test_a_warning_of_the_server_is_said_once():
    agent = Story()
    agent.is_told(wait(), warning="look here")
    assert agent.did(Say)[0] == Say("look here", Level.WARNING)
    agent.is_told(wait(), warning="look here")
    assert agent.did(Say) == []


def test_what_it_waits_for_is_not_said_again_when_only_the_countdown_has_changed():
    agent = Story()
    agent.is_told(wait("waiting for 1 more node: 1 of 2 joined (a)", 600.0))
    agent.is_told(wait("waiting for 1 more node: 1 of 2 joined (a)", 590.0))
    assert agent.said == []
    assert agent.sent == [poll("a.1", revision=2, hold=True)]


def test_what_it_waits_for_is_said_again_when_it_has_changed():
    agent = Story()
    agent.is_told(wait("waiting for 2 more nodes", 600.0))
    agent.is_told(wait("waiting for 1 more node", 600.0))
    assert agent.said == ["waiting for 1 more node; gives up in 600 s"]


def test_a_reply_that_brings_nothing_new_is_answered_with_the_next_poll():
    agent = Story()
    agent.is_told(wait())
    agent.is_told(wait(), revision=1)
    assert agent.effects == [poll("a.1", revision=1, hold=True)]


def test_a_round_starts_the_workers_and_says_their_place():
    agent = Story()
    agent.is_told(start(1))
    assert agent.did(StartWorkers) == [StartWorkers(an_assignment(1))]
    assert agent.said == ["round 1: node 1 of 3, ranks 2-5 of 10, master 10.0.0.1:40001, restart 0 of 3"]
    assert agent.sent == [poll("a.1", revision=1, hold=True)]


def test_only_one_request_is_under_way():
    agent = Story()
    agent.handle(TimePassed())
    agent.handle(Started())
    assert agent.effects == []


# Running.


def test_an_agent_whose_workers_run_keeps_polling():
    agent = running()
    agent.is_told(start(1), revision=1)
    assert agent.effects == [poll("a.1", revision=1, hold=True)]


@pytest.mark.parametrize("round_", [1, 2])
def test_workers_that_run_are_not_started_again(round_):
    agent = running(round=2)
    agent.is_told(start(round_))
    assert agent.did(StartWorkers) == []


def test_a_round_that_it_was_told_before_does_not_start_again():
    agent = running()
    agent.is_told(stop(1))
    agent.workers_are_gone()
    agent.is_told(stop(1), revision=agent.revision)
    agent.is_told(start(1))
    assert agent.did(StartWorkers) == []
    agent.is_told(start(2))
    assert agent.did(StartWorkers) == [StartWorkers(an_assignment(2))]


@pytest.mark.parametrize(
    "directive", [wait("old"), stop(1), finish(), start(3)], ids=lambda it: it.__struct_config__.tag
)
def test_a_reply_older_than_the_last_changes_nothing(directive):
    agent = Story()
    agent.is_told(start(1), revision=7)
    agent.is_told(directive, revision=6)
    assert agent.effects == [poll("a.1", revision=7, hold=True)]


# Succeeding.


def test_success_is_reported_and_the_run_waited_for():
    agent = running()
    agent.workers_succeed()
    assert agent.effects == [report("a.1", 1, None)]


def test_an_agent_whose_run_succeeds_exits_0():
    agent = running()
    agent.workers_succeed()
    agent.is_told(finish())
    assert agent.effects == [Say("run succeeded: all workers of 3 nodes exited 0", Level.ROUTINE), Exit(0)]


def test_a_failure_elsewhere_restarts_an_agent_that_has_finished():
    agent = running()
    agent.workers_succeed()
    agent.is_told(stop(1, "worker rank 9 on node b failed: exit code 1"))
    assert agent.did(StopWorkers) == []
    assert agent.sent == [join("a.1", after_round=1)]


def test_a_success_is_reported_once():
    agent = running()
    agent.workers_succeed()
    agent.workers_succeed()
    assert agent.effects == []


@pytest.mark.parametrize("happens", ["workers_succeed", "workers_fail"])
def test_an_end_of_another_rounds_workers_is_not_reported(happens):
    agent = running(round=2)
    getattr(agent, happens)(round=1)
    assert agent.effects == []


# Failing.


def test_a_failure_is_reported_and_the_siblings_are_stopped():
    agent = running()
    agent.workers_fail()
    assert agent.effects == [
        Say("worker rank 3 (local rank 1, pid 77) on node a failed: exit code 5"),
        report("a.1", 1, a_failure()),
        StopWorkers("SIGTERM"),
    ]


def test_a_second_failure_of_a_round_is_not_reported():
    agent = running()
    agent.workers_fail()
    agent.workers_fail()
    assert agent.effects == []


def test_after_a_failure_it_joins_when_its_workers_are_gone_and_then_the_stop_has_come():
    agent = running()
    agent.workers_fail()
    agent.workers_are_gone()
    assert agent.effects == [], "the server has not said that there is a next round"
    agent.is_told(stop(1))
    assert agent.sent == [join("a.1", after_round=1)]


def test_after_a_failure_it_joins_when_the_stop_has_come_and_then_its_workers_are_gone():
    agent = running()
    agent.workers_fail()
    agent.is_told(stop(1))
    assert agent.sent == [poll("a.1", revision=2, hold=False)], "its siblings are still there"
    assert agent.did(StopWorkers) == [], "they were stopped before"
    agent.is_told(stop(1), revision=2)
    agent.workers_are_gone()
    assert agent.effects == [join("a.1", after_round=1)]


def test_a_failed_run_ends_with_the_evidence_of_it():
    agent = running()
    agent.workers_fail()
    agent.workers_are_gone()
    end = finish(succeeded=False, failure=a_failure(node_id="b"))
    agent.is_told(end)
    assert agent.effects == [Say("run failed: spent"), WriteFailureReport("spent", end), Exit(1)]


def test_the_workers_are_stopped_before_the_evidence_is_left():
    agent = running()
    end = finish(succeeded=False, failure=a_failure(node_id="b"))
    agent.is_told(end)
    assert agent.effects == [Say("run failed: spent"), StopWorkers("SIGTERM"), WriteFailureReport("spent", end)]


# Stopping.


def test_a_failure_is_said_once():
    agent = running()
    agent.workers_fail()
    assert len(agent.said) == 1
    agent.is_told(stop(1, a_failure().sentence))
    assert agent.said == ["stopping the workers of round 1"]


def test_a_stop_stops_the_workers_and_says_why():
    agent = running()
    agent.is_told(stop(1, "node b left: SIGTERM"))
    assert agent.said == ["stopping the workers of round 1: node b left: SIGTERM"]
    assert agent.did(StopWorkers) == [StopWorkers("SIGTERM")]


def test_a_stop_of_another_round_stops_nobody():
    agent = running(round=2)
    agent.is_told(stop(1))
    assert agent.effects == [poll("a.1", revision=2, hold=True)]


def test_a_repeated_stop_says_and_stops_nothing_more():
    agent = running()
    agent.is_told(stop(1))
    agent.is_told(stop(1), revision=agent.revision)
    assert agent.effects == []


def test_a_worker_that_fails_while_it_is_stopped_is_not_reported():
    agent = running()
    agent.is_told(stop(1))
    agent.workers_fail()
    assert agent.effects == []


def test_while_workers_stop_the_agent_is_heard_at_once_and_then_three_times_in_a_lease():
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


def test_the_line_is_free_for_the_join_the_moment_the_last_worker_is_gone():
    agent = running()
    agent.is_told(stop(1))
    agent.is_told(stop(1), revision=2)
    agent.workers_are_gone()
    assert agent.effects == [join("a.1", after_round=1)]
    assert agent.lasts is None


def test_a_join_that_is_due_while_a_keep_alive_is_under_way_follows_its_answer():
    agent = running()
    agent.is_told(stop(1))
    agent.workers_are_gone()
    assert agent.effects == []
    agent.is_told(stop(1), revision=2)
    assert agent.effects == [join("a.1", after_round=1)]


def test_no_round_starts_before_the_agent_has_joined_it():
    agent = running()
    agent.is_told(stop(1))
    agent.workers_are_gone()
    agent.is_told(start(2))
    assert agent.effects == [join("a.1", after_round=1)]


def test_workers_of_an_earlier_round_that_are_gone_are_no_news():
    agent = running()
    agent.is_told(stop(1))
    agent.workers_are_gone()
    agent.is_told(stop(1), revision=2)
    agent.is_told(start(2))
    agent.is_told(stop(2))
    agent.workers_are_gone(round=1)
    agent.is_told(stop(2), revision=agent.revision)
    assert agent.sent == []


def test_a_round_that_was_over_before_the_agent_heard_of_it_is_joined_after():
    agent = Story()
    agent.is_told(stop(1, "worker rank 9 on node b failed: exit code 1"))
    assert agent.said == ["round 1 is over before it began here: worker rank 9 on node b failed: exit code 1"]
    assert agent.sent == [join("a.1", after_round=1)]


def test_a_stop_that_was_obeyed_before_is_no_reason_to_join_again():
    agent = running()
    agent.is_told(stop(1))
    agent.workers_are_gone()
    agent.is_told(stop(1), revision=2)
    agent.is_told(stop(1), revision=2)
    assert agent.effects == [poll("a.1", revision=2, hold=True)]


# Fenced.


def test_a_fenced_agent_stops_its_workers_and_joins_anew_as_another():
    agent = running(round=4)
    agent.is_refused(AgentFenced("agent a.1 is no longer part of run r"))
    assert agent.effects == [
        Say("agent a.1 is no longer part of run r; joining anew"),
        StopWorkers("SIGTERM"),
    ]
    assert agent.lasts is None, "a fenced agent has nothing to keep alive"
    agent.workers_are_gone()
    assert agent.effects == [join("a.2", after_round=0, returning=True)]


def test_a_fenced_agent_takes_whatever_its_new_run_tells_it():
    agent = Story()
    agent.is_told(start(9), revision=50)
    agent.is_refused(AgentFenced("gone"))
    agent.workers_are_gone()
    agent.is_told(start(1), revision=1)
    assert agent.did(StartWorkers) == [StartWorkers(an_assignment(1))]
    assert agent.sent == [poll("a.2", revision=1, hold=True)]


def test_an_agent_without_workers_that_is_fenced_joins_anew_at_once():
    agent = Story()
    agent.is_refused(AgentFenced("gone"))
    assert agent.sent == [join("a.2", after_round=0, returning=True)]


def test_an_agent_that_is_fenced_while_its_workers_stop_does_not_stop_them_twice():
    agent = running()
    agent.is_told(stop(1))
    agent.is_refused(AgentFenced("gone"))
    assert agent.did(StopWorkers) == []
    agent.workers_are_gone()
    assert agent.sent == [join("a.2", after_round=0, returning=True)]


# Refused.


def test_an_agent_that_comes_after_the_success_exits_0():
    agent = Story()
    agent.is_refused(RunSucceeded("run r has already succeeded"))
    assert agent.effects == [Say("run r has already succeeded"), Exit(0)]


@pytest.mark.parametrize("error", [SettingsConflict, NodeRankTaken, Unauthorized], ids=lambda error: error.code)
def test_an_agent_that_may_not_take_part_exits_2_and_says_why(error):
    agent = Story()
    agent.is_refused(error("this will not do"))
    evidence = WriteFailureReport(f"{error.__name__}: this will not do")
    assert agent.effects == [Say("error: this will not do"), evidence, Exit(2)]


def test_a_refusal_stops_the_workers_first():
    agent = running()
    agent.is_refused(Unauthorized("no token"))
    assert (agent.did(StopWorkers), agent.did(Exit)) == ([StopWorkers("SIGTERM")], [])
    agent.workers_are_gone()
    assert agent.effects == [Exit(1)]


def test_a_fenced_agent_that_is_not_let_in_again_has_started_workers_all_the_same():
    agent = running()
    agent.is_refused(AgentFenced("lease ran out"))
    agent.workers_are_gone()
    agent.is_refused(NodeRankTaken("rank 0 is taken"))
    assert agent.did(Exit) == [Exit(1)]


def test_a_report_that_the_server_refuses_ends_the_agent_instead_of_leaving_it_waiting():
    agent = running()
    agent.workers_fail()
    agent.gives_up("rdzv-server refused a ReportRequest: too long")
    agent.workers_are_gone()
    assert agent.effects == [Exit(1)]


def test_an_agent_that_is_ending_keeps_its_exit_code_when_its_last_word_is_refused():
    agent = running()
    agent.is_signalled()
    agent.gives_up("rdzv-server refused a LeaveRequest: too long")
    agent.workers_are_gone()
    assert agent.effects == [Exit(1)]


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


# Ending.


@pytest.mark.parametrize(("succeeded", "code"), [(True, 0), (False, 1)])
def test_an_end_of_the_run_stops_what_still_runs(succeeded, code):
    agent = running()
    agent.is_told(finish(succeeded=succeeded))
    assert (agent.did(StopWorkers), agent.did(Exit), agent.sent) == ([StopWorkers("SIGTERM")], [], [])
    agent.workers_are_gone()
    assert agent.effects == [Exit(code)]


def test_a_standby_exits_with_the_run():
    agent = Story()
    agent.is_told(wait("standing by"))
    agent.is_told(finish())
    assert agent.did(Exit) == [Exit(0)]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_makes_the_agent_leave_and_stop_its_workers_with_the_same_signal(name):
    agent = running()
    agent.is_signalled(name)
    evidence = WriteFailureReport(f"SignalException: the agent got {name}")
    assert agent.effects == [Say(f"{name}: leaving the run"), leave("a.1", name), StopWorkers(name), evidence]
    agent.workers_are_gone()
    assert agent.effects == [Exit(1)]


def test_a_second_signal_kills_the_workers():
    agent = running()
    agent.is_signalled("SIGINT")
    agent.is_signalled("SIGINT")
    assert agent.effects == [Say("SIGINT again: killing the workers"), StopWorkers("SIGINT", kill=True)]


def test_a_signal_after_the_end_of_the_run_kills_the_workers():
    agent = running()
    agent.is_told(finish())
    agent.is_signalled("SIGTERM")
    assert agent.did(StopWorkers) == [StopWorkers("SIGTERM", kill=True)]
    agent.workers_are_gone()
    assert agent.effects == [Exit(0)]


def test_an_agent_without_workers_leaves_at_once():
    agent = Story()
    agent.is_signalled()
    assert agent.said == ["SIGTERM: leaving the run"]
    assert agent.did(LeaveRequest) == [leave("a.1", "SIGTERM")]
    assert agent.did(Exit) == [Exit(1)]


def test_an_agent_that_was_signalled_while_its_workers_stop_does_not_signal_them_twice():
    agent = running()
    agent.is_told(stop(1))
    agent.is_signalled()
    assert agent.did(StopWorkers) == []
    agent.workers_are_gone()
    assert agent.did(Exit) == [Exit(1)]


@pytest.mark.parametrize("directive", [wait(), start(2), stop(1), finish()], ids=lambda it: type(it).__name__)
def test_an_agent_that_leaves_does_as_no_server_says(directive):
    agent = running()
    agent.is_signalled()
    agent.is_told(directive)
    assert agent.effects == []


def test_an_agent_that_leaves_heeds_no_refusal():
    agent = running()
    agent.is_signalled()
    agent.is_refused(RunSucceeded("over"))
    assert agent.effects == []
    agent.workers_are_gone()
    assert agent.effects == [Exit(1)]


@pytest.mark.parametrize(
    "happens",
    [
        lambda agent: agent.is_told(start(2)),
        lambda agent: agent.is_refused(AgentFenced("gone")),
        lambda agent: agent.is_signalled(),
        lambda agent: agent.gives_up(),
        lambda agent: agent.handle(TimePassed()),
        lambda agent: agent.handle(WorkerFailed(1, a_failure())),
        lambda agent: agent.handle(WorkersStopped(1)),
    ],
    ids=["start", "fenced", "signal", "gave up", "time", "failure", "stopped"],
)
def test_after_the_exit_nothing_happens(happens):
    agent = running()
    agent.workers_succeed()
    agent.is_told(finish())
    assert agent.did(Exit) == [Exit(0)]
    happens(agent)
    assert agent.effects == []
    assert agent.lasts is None
