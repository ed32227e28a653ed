"""Outages of the server: what an agent logs, how long it waits, and when it gives up."""

from math import inf
from typing import get_args

import pytest
from rdzv_protocol.errors import (
    AgentFenced,
    OutcomeUnknown,
    ServerUnavailable,
)

from node_agent import words
from node_agent.kernel.core.backoff import Cut, Unreachable
from node_agent.kernel.core.effects import (
    Exit,
    Level,
    Log,
    WriteFailureReport,
)
from node_agent.kernel.core.events import (
    PollCut,
    ServerRefused,
)
from node_agent.kernel.core.machine import CAUSE_TIMEOUT_S
from node_agent.words.connection import Stage
from tests.unit.node_agent.kernel.core.steps import (
    REFUSED,
    RUNS,
    SIGTERM_REPORT,
    START_AGAIN,
    STOP,
    check_actions,
    errs,
    fails,
    fails_to_connect,
    gone,
    happens,
    passes,
    refused,
    signalled,
    succeeds,
    told,
    waits,
)
from tests.unit.node_agent.story import (
    LEASE_S,
    leave,
    poll,
    report,
    start,
    wait,
)

CONNECT = "connect: 10.0.0.1: Connection refused"
SERVER = "host:1"
UNKNOWN = Unreachable("TLS", "of an unknown authority", is_final=True)
LOST_5 = words.connection.server_given_up(SERVER, 5.0, CONNECT, "connect")
LEAVING_SAID = Log(words.leaving.leaving_without_server("SIGTERM"), Level.WARNING, "node_left")
ALL_SUCCEEDED = Log(words.leaving.WORKERS_SUCCEEDED, Level.WARNING, "server_lost")
OUTCOME_NEEDED = (
    Log(words.leaving.OUTCOME_NEEDED, Level.WARNING, "gave_up"),
    WriteFailureReport(words.leaving.OUTCOME_NEEDED),
)


def warned(text, event="server_lost"):
    return Log(text, Level.WARNING, event)


def lost(has_workers, longest_s, failure=CONNECT):
    return warned(words.connection.server_lost(SERVER, str(failure), has_workers, longest_s))


def reached(after_s):
    return warned(words.connection.server_reached(SERVER, after_s), "server_reached")


def server_given_up(within_s, failure=CONNECT, stage="connect"):
    return gives_up(words.connection.server_given_up(SERVER, within_s, str(failure), stage), START_AGAIN)


WITHIN_300 = errs(words.connection.server_given_up(SERVER, 300.0, CONNECT, "connect"))


FULL, NO_LEADER = ServerUnavailable("the disk is full"), Unreachable("leader", "etcd is lost")


def refuses(agent):
    """Let the server answer once a second for 400 s that it cannot serve now. The failure is reported once."""
    for _ in range(400):
        agent.time_passes(1.0)
        agent.handle(ServerRefused())
        assert not agent.effects


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
    "the agent logs a server that is not there yet":
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
    "the agent logs another cause":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), fails_to_connect(Unreachable("HTTP", "closed"))],
         [warned(words.connection.still_no_server(SERVER, "HTTP: closed", inf, False))]),
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
         [report(), warned(words.connection.success_not_delivered(SERVER, str(CONNECT), 300.0, False))]),
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
    "the agent logs a server that comes back":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(), succeeds, passes(10.0), told(start(1), revision=1)],
         [reached(10.0), report(), poll(revision=1)]),
    "a server that answers that it cannot serve now lives, so its silence is the limit":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(FULL), succeeds],
         [report(), warned(words.connection.success_not_delivered(SERVER, str(FULL), 300.0, True))]),
    "and it is waited for as long as it answers":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(FULL), succeeds, refuses, passes(299.0)], []),
    "but not once it is silent":
        ({"connect_timeout_s": 300.0},
         [RUNS, fails_to_connect(FULL), succeeds, refuses, fails_to_connect(), passes(300.0)],
         [WITHIN_300, ALL_SUCCEEDED, Exit(0)]),
    "an agent whose workers failed waits for it, too":
        ({"connect_timeout_s": 300.0}, [RUNS, fails_to_connect(FULL), fails, gone, refuses, passes(299.0)], []),
    "and so does one of several servers without a leader":
        ({"connect_timeout_s": 300.0}, [RUNS, succeeds, fails_to_connect(), fails_to_connect(NO_LEADER)],
         [warned(words.connection.still_no_server(SERVER, str(NO_LEADER), 300.0, True))]),
    "a server that has never served is waited for only as long as for its first answer":
        ({"connect_timeout_s": 5.0}, [fails_to_connect(FULL), passes(4.0), happens(ServerRefused()), passes(1.0)],
         server_given_up(5.0, FULL, "server")),
    "the user's own limit holds for any answer of the server":
        ({"server_lost_timeout_s": 5.0},
         [RUNS, fails_to_connect(FULL), succeeds, passes(4.0), happens(ServerRefused()), passes(1.0)],
         [errs(words.connection.server_given_up(SERVER, 5.0, str(FULL), "server")), ALL_SUCCEEDED, Exit(0)]),
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
    "an agent that exits with its run does not take its own workers' success for the run's":
        ({"connect_timeout_s": 300.0, "exits_with_run": True},
         [RUNS, fails_to_connect(), succeeds, passes(300.0)],
         [WITHIN_300, ALL_SUCCEEDED, *OUTCOME_NEEDED, Exit(START_AGAIN)]),
    "nor if a signal comes":
        ({"exits_with_run": True}, [RUNS, succeeds, fails_to_connect(), passes(CAUSE_TIMEOUT_S), signalled()],
         [LEAVING_SAID, leave(), *OUTCOME_NEEDED, Exit(START_AGAIN)]),
    "nor if the run is forgotten":
        ({"exits_with_run": True}, [RUNS, succeeds, refused(AgentFenced("gone")), refused(OutcomeUnknown("no"))],
         [Log(words.leaving.outcome_unknown("no"), Level.WARNING, "refused"), *OUTCOME_NEEDED, Exit(REFUSED)]),
    "unless no other node had workers":
        ({"connect_timeout_s": 300.0, "exits_with_run": True},
         [told(start(group_world_size=1)), fails_to_connect(), succeeds, passes(300.0)],
         [WITHIN_300, ALL_SUCCEEDED, Exit(0)]),
}
# fmt: on


@pytest.mark.parametrize(("limits", "events", "does"), OUTAGES.values(), ids=OUTAGES)
def test_actions_during_an_outage(limits, events, does):
    check_actions(events, does, **limits)
