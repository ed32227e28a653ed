"""Answers to operators' requests: actions on runs and nodes, and what only agents know.

A server imports this for the first operator, or soon after its start: most runs with `--standalone` have none.
"""

import logging
import os
import time
from typing import TypeVar

from msgspec import structs
from rdzv_protocol import actions
from rdzv_protocol.errors import NoAnswer, QueryRefused, ServerUnavailable
from rdzv_protocol.queries import Description, LogTail, Refused
from rdzv_protocol.text import printable

from rdzv_server.core import events
from rdzv_server.core.effects import CloseQuery
from rdzv_server.core.kernel import operations
from rdzv_server.core.policies.hangs.examination import EXAMINED_WITHIN_S, StacksAsked
from rdzv_server.core.policies.hangs.stack_summary import StackSummary
from rdzv_server.service.driver import Driver
from rdzv_server.service.inbox import OperatorQuery
from rdzv_server.service.interface import Answer, Connection, OperatorRequest
from rdzv_server.words import service as words

log = logging.getLogger("rdzv_server")

AGENT_ANSWERS_S = 5.0
"""Most seconds for an agent's answer to an operator's query: usually it takes a fraction of one."""
Told = TypeVar("Told", LogTail, Description)
_NAMES = {action.request: action.name for action in actions.ACTIONS}


async def answer(request: OperatorRequest, driver: Driver, connection: Connection, epoch: str) -> Answer:
    """Answer a request. Raises the `ProtocolError` that refuses it. `epoch`: this start of the server process."""
    wanted, by = request.message, request.by
    match wanted:
        case actions.StacksRequest():
            return await _ask_for_stacks(wanted, by, driver, connection)
        case actions.LogsRequest():
            return await _ask_for_log(wanted, by, driver, connection)
        case actions.DescribeRequest():
            return await _ask_for_description(wanted, driver, connection)
    return await _act(wanted, by, request, driver, epoch)


async def _act(
    wanted: actions.ActionRequest, by: str, request: OperatorRequest, driver: Driver, epoch: str
) -> actions.Done:
    """Carry out an operator's action. A request without an id gets a new one, since it does not repeat another one.

    While nothing can be decided, the action is refused: carried out later, it might surprise.
    """
    if reason := driver.unhealthy_reason:
        raise ServerUnavailable(reason)
    request_id = wanted.request_id or os.urandom(8).hex()
    fact = operations.fact_of(_NAMES[type(wanted)], wanted, by, request_id, time.time(), request.idle)
    answered = await driver.act(request.run_id, fact)
    if answered.is_unreported:
        log.info("%s", words.done_by(answered.sentence, by))
    return actions.Done(epoch=epoch, message=answered.sentence, changed=answered.has_changed)


async def _ask_for_stacks(
    wanted: actions.StacksRequest, by: str, driver: Driver, connection: Connection
) -> actions.WorkerStacks:
    """Ask agents what their workers are doing. Raises `NoAnswer` if none can be reached, or the core's refusal."""
    asked = StacksAsked(
        token=os.urandom(8).hex(), rank=wanted.rank, reason=printable(wanted.reason), by=by, within_s=EXAMINED_WITHIN_S
    )
    closed = await _ask_agents(wanted.run_id, asked, driver, connection)
    assert isinstance(closed.answer, StackSummary)
    found = closed.answer
    if not found.has_stacks:
        raise NoAnswer("; ".join((words.no_stacks(found.sentence), *found.problems)))
    return actions.WorkerStacks(
        round=closed.round, sentence=found.sentence, stack=found.stack, node_id=found.folder_node, folder=found.folder,
        problems=found.problems,
    )  # fmt: skip


async def _ask_for_log(
    wanted: actions.LogsRequest, by: str, driver: Driver, connection: Connection
) -> actions.WorkerLog:
    """Ask the worker's agent for the end of its log. Raises `NoAnswer`, `QueryRefused`, or the core's refusal."""
    asked = events.LogAsked(
        os.urandom(8).hex(), wanted.rank, wanted.stream, wanted.lines, wanted.offset, AGENT_ANSWERS_S
    )
    closed, tail = await _answer_of(LogTail, wanted.run_id, asked, driver, connection)
    if wanted.offset is None:  # else it follows an earlier query
        log.info("%s", words.log_was_read(wanted.run_id, wanted.rank, closed.node_id, by))
    return actions.WorkerLog(
        node_id=closed.node_id, rank=wanted.rank, round=closed.round, stream=wanted.stream,
        path=tail.path, text=tail.text, offset=tail.offset, is_cut=tail.is_cut,
    )  # fmt: skip


async def _ask_for_description(
    wanted: actions.DescribeRequest, driver: Driver, connection: Connection
) -> actions.AgentDescription:
    """Ask a node's agent for its description. Raises `NoAnswer`, `QueryRefused`, or the core's refusal."""
    asked = events.DescriptionAsked(os.urandom(8).hex(), wanted.node_id, AGENT_ANSWERS_S)
    closed, found = await _answer_of(Description, wanted.run_id, asked, driver, connection)
    return actions.AgentDescription(node_id=closed.node_id, **structs.asdict(found))


async def _answer_of(
    kind: type[Told], run_id: str, asked: OperatorQuery, driver: Driver, connection: Connection
) -> tuple[CloseQuery, Told]:
    """Ask one agent, and return its answer. Raises `NoAnswer`, `QueryRefused`, or the core's refusal."""
    closed = await _ask_agents(run_id, asked, driver, connection)
    match closed.answer:
        case None:
            raise NoAnswer(words.agent_did_not_answer(closed.node_id, AGENT_ANSWERS_S))
        case Refused(reason=reason):
            raise QueryRefused(printable(reason))
        case answered if isinstance(answered, kind):
            return closed, answered
        case _:
            raise QueryRefused(words.another_query(closed.node_id))


async def _ask_agents(run_id: str, asked: OperatorQuery, driver: Driver, connection: Connection) -> CloseQuery:
    asked_at = driver.now()
    try:
        return await driver.ask_agent(run_id, asked)
    finally:
        connection.held(driver.now() - asked_at)
