"""Events that wait for the driver: which are merged, which are dropped, and which never are."""

import asyncio

import pytest
from rdzv_protocol.messages import FinishedWorkers, Progress

from rdzv_server.core.events import (
    AgentDisconnected,
    Event,
    LeaseRenewed,
    LogAsked,
    NodeJoined,
    NodeLeft,
    RunStopped,
    WorkersFailed,
    WorkersSucceeded,
)
from rdzv_server.core.policies.hangs.examination import StacksAsked
from rdzv_server.core.policies.hangs.suspicions import HangSuspected
from rdzv_server.service.inbox import Inbox
from tests.support.scenario import a_failure, a_join

JOIN = NodeJoined(a_join("a"), "10.0.0.9")
FAILED = WorkersFailed("a", 1, a_failure("a"))
LOG = LogAsked("token", 0, "stdout", 10, None, 5.0)
STACKS = StacksAsked(token="token", rank=None, reason="", by="", within_s=5.0)


def left_of(*events: Event) -> list[Event]:
    """Return the events that the inbox holds after these, in their order."""
    inbox = Inbox()
    for event in events:
        inbox.put("run", event)
    assert len(inbox) <= len(events)
    return [inbox.pop().event for _ in range(len(inbox))]


def test_a_later_sign_of_the_same_agent_replaces_an_earlier_one() -> None:
    renewed, gone = LeaseRenewed("a"), AgentDisconnected("a")
    assert left_of(renewed, gone) == [gone]
    assert left_of(gone, renewed) == [renewed]
    assert left_of(renewed, LeaseRenewed("b"), renewed) == [renewed, LeaseRenewed("b")]


def test_a_sign_stays_after_what_the_agent_has_asked_before_it() -> None:
    renewed, gone = LeaseRenewed("a"), AgentDisconnected("a")
    assert left_of(renewed, JOIN, gone) == [renewed, JOIN, gone]
    assert left_of(gone, FAILED, renewed, FAILED, renewed) == [gone, FAILED, renewed]


def test_progress_is_kept_when_a_sign_without_it_follows() -> None:
    told = LeaseRenewed("a", Progress(round=1, lowest_step=7))
    assert left_of(told, LeaseRenewed("a")) == [told]
    done = LeaseRenewed("a", None, FinishedWorkers(round=1, ranks=(0,), ago_s=0.0))
    assert left_of(told, done, LeaseRenewed("a")) == [LeaseRenewed("a", told.progress, done.finished)]
    assert left_of(told, AgentDisconnected("a")) == [AgentDisconnected("a")]


def test_a_poll_is_kept_when_another_sign_of_the_agent_follows() -> None:
    poll, report = LeaseRenewed("a", console_held_s=12.0), LeaseRenewed("a", Progress(round=1), is_poll=False)
    both = LeaseRenewed("a", report.progress, console_held_s=12.0)
    assert left_of(poll, report) == [both]
    assert left_of(report, poll) == [both]


@pytest.mark.parametrize("event", [JOIN, FAILED, WorkersSucceeded("a", 1), NodeLeft("a", "SIGTERM")])
def test_a_repeated_request_waits_with_the_first(event: Event) -> None:
    assert left_of(event, event, LeaseRenewed("a"), event) == [event, LeaseRenewed("a")]


def test_a_suspicion_that_is_retracted_and_repeated_stays() -> None:
    hangs, runs = HangSuspected("a", 1, "progress", "no step", (0,)), HangSuspected("a", 1, "progress", "", ())
    assert left_of(hangs, runs, hangs) == [hangs, runs, hangs]


def test_agents_with_the_same_id_in_two_runs_are_different() -> None:
    inbox = Inbox()
    inbox.put("run", JOIN)
    inbox.put("other", JOIN)
    assert len(inbox) == 2


@pytest.mark.parametrize("event", [LOG, STACKS])
async def test_a_question_is_dropped_when_its_caller_has_gone(event: Event) -> None:
    assert await waits_without_its_caller(event) == 0


@pytest.mark.parametrize("event", [JOIN, FAILED, NodeLeft("a", "SIGTERM"), RunStopped("", "an operator")])
async def test_an_event_stays_when_its_caller_has_gone(event: Event) -> None:
    assert await waits_without_its_caller(event) == 1


async def waits_without_its_caller(event: Event) -> int:
    inbox = Inbox()
    caller = asyncio.get_running_loop().create_future()
    pending = inbox.put("run", event, caller)
    inbox.leave(pending, caller)
    assert bool(inbox) == bool(len(inbox))
    return len(inbox)


async def test_a_caller_that_leaves_after_its_turn_changes_nothing() -> None:
    inbox = Inbox()
    caller = asyncio.get_running_loop().create_future()
    pending = inbox.put("run", LOG, caller)
    assert inbox.pop() is pending and pending.callers == [caller]
    inbox.put("run", LOG)
    inbox.leave(pending, caller)
    assert len(inbox) == 1


def test_the_oldest_event_is_unread_until_it_is_taken() -> None:
    now = iter([1.0, 2.0, 3.0])
    inbox = Inbox(lambda: next(now))
    assert inbox.unread_since() == float("inf")
    inbox.put("run", LeaseRenewed("a"))
    inbox.put("run", LeaseRenewed("b"))
    inbox.put("run", LeaseRenewed("a"))
    inbox.put("another run", JOIN)
    assert inbox.unread_since() == 1.0, "the first of an agent's signs counts"
    left = []
    while inbox:
        inbox.pop()
        left.append(inbox.unread_since())
    assert left == [2.0, 2.0, float("inf")], "runs take turns"
