"""Answers to the requests of agents: messages in, messages out. `operator_requests` answers those of operators."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec import structs
from rdzv_protocol import messages
from rdzv_protocol.errors import AgentFenced, ProtocolError, ServerUnavailable
from rdzv_protocol.settings import RunSettings
from rdzv_protocol.text import clip, printable
from rdzv_protocol.timing import HOLDS_PER_LEASE, hold_s

from rdzv_server.core import events
from rdzv_server.core.kernel import admission, agent_secrets, duplicate_node_ids
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.kernel.run import Run
from rdzv_server.core.node_history import Incident
from rdzv_server.core.policies.hangs.suspicions import HangSuspected
from rdzv_server.core.runs import mismatched_run_ids
from rdzv_server.service.agent_connections import Connections
from rdzv_server.service.driver import Driver
from rdzv_server.service.fair_scheduler import scheduler
from rdzv_server.service.interface import (
    Answer,
    Answered,
    AnyRequest,
    Connection,
    Load,
    OperatorRequest,
    ServerState,
)
from rdzv_server.service.long_polls import AgentKey
from rdzv_server.service.observers import Observer
from rdzv_server.service.reading import read
from rdzv_server.words import admission as admission_words
from rdzv_server.words import losses
from rdzv_server.words import service as words

FIRST_HOLD_S = 1.0
"""Seconds after which a waiting join gets its first answer, so that a person soon sees what it waits for."""
FIRST_HOLD_A_NODE_S = 2e-3
"""Seconds for each expected node after which a join gets its first answer, if that is longer than `FIRST_HOLD_S`.
Otherwise many nodes would be answered while others still arrive: on a busy machine each join takes 1 ms."""
CROWD_HOLDS_PER_LEASE = 1.5
"""Divisor of a lease for the longest first hold while requests of other agents wait.

If an answer only says what the round waits for, the agent asks again at once. That costs as much as the join did, and
delays the round. An agent that knows its lease waits for three quarters of it.
"""
_Told = messages.ReportRequest | messages.SuspectRequest | messages.LeaveRequest | messages.AnswerRequest
LATE_BYTES = 1_000
"""Most bytes of a late report that the log shows."""


class Rendezvous:
    """Answers of one server, or of one leadership, to each kind of request.

    `leadership`: its number, if there are several servers.
    """

    def __init__(self, driver: Driver, leadership: int = 0) -> None:
        self._driver = driver
        self._long_polls = driver.long_polls
        self.measurements = driver.measurements
        self.leadership = leadership
        self._closing = False
        self._probes: dict[AgentKey, list[asyncio.Event]] = {}
        """Events that are set when an agent polls whose sign of life is awaited, by agent."""
        self.connections = Connections(self._disconnected, came=lambda: scheduler().agent_came())
        self.epoch = os.urandom(8).hex()
        self.replied: Callable[[AgentKey, messages.Directive], None] = lambda key, directive: None
        """Callback for every directive that an agent gets."""

    async def ask(self, request: AnyRequest, connection: Connection) -> Answer:
        """Answer a request. Raises the `ProtocolError` that refuses it."""
        match request:
            case messages.JoinRequest():
                return await self._join(request, connection)
            case messages.PollRequest():
                return await self._poll(request, connection)
            case messages.LeaderRequest():
                return messages.LeaderReply(leadership=self.leadership, leads=True)
            case OperatorRequest():
                from rdzv_server.service import operator_requests  # `import_late` imports it before it is needed

                return await operator_requests.answer(request, self._driver, connection, self.epoch)
        machine = self._machine_of_sender(request)
        if isinstance(request, messages.ReportRequest) and (request.progress or request.finished):
            renewed = events.LeaseRenewed(request.agent_id, request.progress, request.finished, is_poll=False)
            self._driver.notify(request.run_id, renewed)
        try:
            await self._driver.submit(request.run_id, _event(request))
        except AgentFenced:
            if isinstance(request, messages.ReportRequest) and request.failure and machine:
                self._log_late(machine.run, request.agent_id, request.failure)
            raise
        return messages.Ack(epoch=self.epoch)

    def _log_late(self, run: Run, agent_id: str, failure: messages.Failure) -> None:
        """Log what a lost agent reports too late: its link may be slow, and the failure the cause of its loss."""
        gone = next((gone for gone in reversed(run.departures) if gone.agent_id == agent_id), None)
        if gone and not gone.left and gone.node_id == failure.node_id:
            sentence = clip(printable(failure.sentence), LATE_BYTES)
            self._driver.warn(run.run_id, losses.reported_late(gone.node_id, sentence))

    async def _join(self, request: messages.JoinRequest, connection: Connection) -> messages.Reply:
        """Answer a join with the assignment when the round completes, or with what the round waits for."""
        key = (request.run_id, request.agent_id)
        join = structs.replace(request, secret=agent_secrets.digest(request.secret))
        with self.connections.bound(connection, key):
            joined = events.NodeJoined(join, connection.server_addr, is_scoped=connection.is_scoped)
            machine = await self._enter(joined)
        self._note_close(connection, key)
        agent = machine.run.agents.get(request.agent_id)
        if agent and agent.has_joined:
            held_s = _first_hold_s(machine.run.settings, is_crowd=scheduler().agents_wait)
            await self._park(machine, request.agent_id, held_s, connection)
        return self._reply(machine, request.agent_id, admission.differs(machine.run, request))

    async def _poll(self, request: messages.PollRequest, connection: Connection) -> messages.Reply:
        """Answer a poll once the directive is newer than the revision that the agent has seen, or the hold ends.

        The hold begins when the poll arrives: if the server is slow, the agent does not wait longer.
        """
        key = (request.run_id, request.agent_id)
        heard = events.LeaseRenewed(
            request.agent_id, request.progress, request.finished, request.console_held_s, request.ended_script
        )
        machine = self._machine_of_sender(request)
        await self._driver.check_revision(request)
        arrived_at = self._driver.now()
        try:
            with self.connections.bound(connection, key):
                if machine is None or not self._driver.renew(heard, machine):
                    machine = await self._driver.submit(request.run_id, heard)
        except ServerUnavailable:
            if machine is not None and connection.is_closed:
                self.connections.left_unread(key)
            raise
        self._note_close(connection, key)
        for probe in self._probes.get(key, ()):
            probe.set()
        has_news = machine.has_news(request.agent_id, request.revision)
        if request.hold and not has_news and not machine.run.queries.has_changed(request.agent_id, request.asked):
            left_s = max(0.0, arrived_at + hold_s(machine.run.settings.lease_s) - self._driver.now())
            await self._park(machine, request.agent_id, left_s, connection)
        reply = self._reply(machine, request.agent_id)
        if request.wants_summary:
            from rdzv_server.core.views import summary_view  # `import_late` imports it before it is needed

            run, now = machine.run, self._driver.now()
            summary = read(run, lambda: summary_view.view(run, now), lambda why: None)
            reply = structs.replace(reply, summary=summary)
        return reply

    def lost(self, connection: Connection) -> None:
        self.connections.lost(connection)

    def runs(self) -> list[Run]:
        return self._driver.runs()

    def incidents_of(self, node_id: str) -> list[Incident]:
        return self._driver.registry.incidents_of(node_id)

    def now(self, run_id: str = "") -> float:
        return self._driver.now()

    def observe(self, observer: Observer) -> None:
        self._driver.observers.add(observer)

    async def with_driver(self, run_id: str, work: Callable[[Driver], Awaitable[Answered]]) -> Answered:
        return await work(self._driver)

    def state(self) -> ServerState:
        return ServerState(
            epoch=self.epoch,
            unhealthy_reason=words.CLOSING if self._closing else self._driver.unhealthy_reason,
            leadership=self.leadership,
            uptime_s=round(self._driver.now() - self._driver.started_at, 3),
            set_apart=self._driver.registry.runs_apart,
            event_errors=self._driver.observers.failed_runs,
            cordons=self._driver.cordons(),
        )

    def load(self) -> Load:
        return Load(len(self._long_polls))

    def close(self) -> None:
        """Answer every parked poll, and park no more. Requests still get answers until the driver stops."""
        self._closing = True
        self._long_polls.wake_all()

    async def _enter(self, event: events.NodeJoined) -> RunMachine:
        """Let an agent join, and wait while the agent that has its `--node-rank` is probed.

        Raises the `ProtocolError` that refuses it.
        """
        join = event.join
        while True:
            machine = await self._admit(event)
            run = machine.run
            if join.node_rank is None or join.agent_id in run.agents or run.stage.is_end:
                return machine
            holder = run.node_ranks.get(join.node_rank, "")
            if (until := run.leases.probed_until.get(holder)) is not None:
                await self._answer((join.run_id, holder), until - self._driver.now())

    async def _admit(self, event: events.NodeJoined) -> RunMachine:
        """Let the driver handle a join. If the agent may not join, those that wait for its node learn the reason."""
        join = event.join
        try:
            return await self._driver.submit(join.run_id, event)
        except ProtocolError as error:
            if error.brief and (attempts := self._driver.registry.attempts_of(join.run_id)):
                admission.note_refused(attempts[-1], join.node_id, error.brief)
            raise

    async def _answer(self, key: AgentKey, within_s: float) -> None:
        """Return when the agent polls, or after `within_s` seconds."""
        probe, probes = asyncio.Event(), self._probes.setdefault(key, [])
        probes.append(probe)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await probe.wait()
        finally:
            probes.remove(probe)
            if not probes:
                self._probes.pop(key, None)

    async def _park(self, machine: RunMachine, agent_id: str, hold_s: float, connection: Connection) -> None:
        run = machine.run
        is_awaited = agent_id in run.leases.uncertain  # its next poll is a sign of life, and comes at once
        if not (is_awaited or self._closing):
            loop = asyncio.get_running_loop()
            parked_at = loop.time()
            run.leases.parked = (run.leases.parked or 0) + 1
            try:
                with self.connections.parked(connection, (run.run_id, agent_id)):
                    await self._long_polls.park((run.run_id, agent_id), hold_s)
            finally:
                run.leases.parked -= 1
            connection.held(loop.time() - parked_at)
        await self._driver.written(machine, agent_id)  # the hold may have ended while a newer directive is written

    def _reply(self, machine: RunMachine, agent_id: str, warning: str = "") -> messages.Reply:
        """Return the reply with the agent's directive. If the core raises an exception, the run is set apart."""
        try:
            return self._reply_now(machine, agent_id, warning)
        except ProtocolError:
            raise
        except Exception as error:
            self._driver.set_apart(machine, error)
            return self._reply_now(machine, agent_id, warning)

    def _reply_now(self, machine: RunMachine, agent_id: str, warning: str) -> messages.Reply:
        run = machine.run
        now = self._driver.now()
        revision, directive = machine.directive_for(agent_id, now)
        self._driver.told((run.run_id, agent_id))
        self.replied((run.run_id, agent_id), directive)
        if type(directive) is messages.Finish:
            admission.check_outcome(run, agent_id)
        return messages.Reply(
            epoch=self.epoch,
            revision=revision,
            lease_s=run.settings.lease_s,
            directive=directive,
            leadership=self.leadership,
            warning=warning or run.set_apart or run.still_running or self._warning(run, agent_id, directive),
            queries=run.queries.of(agent_id, now),
            attempt=run.attempt,
        )

    def _warning(self, run: Run, agent_id: str, directive: messages.Directive) -> str:
        if isinstance(directive, messages.Start):
            return duplicate_node_ids.warning(run, agent_id)
        if isinstance(directive, messages.Wait) and run.membership is None:
            return mismatched_run_ids.warning(run, self._driver.registry.newest(), self._driver.now())
        return ""

    def _machine_of_sender(self, request: messages.PollRequest | _Told) -> RunMachine | None:
        """Return the machine of the attempt that the agent is part of; None if its run is unknown.

        Raises `AgentFenced` if the request does not contain the secret with which its agent has joined.
        """
        try:
            machine = self._driver.registry.machine_of(request.run_id, request.agent_id)
        except AgentFenced:
            return None  # unless its join is on its way, the driver answers the same
        agent = machine.run.agents.get(request.agent_id)
        if agent and not agent_secrets.is_same(agent_secrets.digest(request.secret), agent.join.secret):
            raise AgentFenced(admission_words.other_secret(request.agent_id, request.run_id))
        return machine

    def _note_close(self, connection: Connection, key: AgentKey) -> None:
        """Note that a connection has closed while the server handled the agent's request, so before any answer."""
        if connection.is_closed:
            self.connections.left_unread(key)

    def _disconnected(self, key: AgentKey, was_parked: bool) -> None:
        run_id, agent_id = key
        if not self._closing:  # otherwise this server goes away, not the agent
            self._driver.notify(run_id, events.AgentDisconnected(agent_id, was_parked))


def _event(request: _Told) -> events.Event:
    """Return the event for an agent's request."""
    match request:
        case messages.ReportRequest(failure=messages.Failure() as failure):
            return events.WorkersFailed(request.agent_id, request.round, failure, ago_s=request.ago_s)
        case messages.ReportRequest():
            return events.WorkersSucceeded(request.agent_id, request.round, request.errors)
        case messages.SuspectRequest(source=source, reason=reason):
            return HangSuspected(
                request.agent_id, request.round, printable(source), printable(reason), request.ranks,
                request.silent_s, request.limit_s, request.number, request.ends_rules, request.is_untold,
            )  # fmt: skip
        case messages.LeaveRequest():
            reason = printable(request.reason)
            if request.notice_s is not None:
                return events.LeaveAnnounced(request.agent_id, reason, request.notice_s, request.stop_s)
            return events.NodeLeft(request.agent_id, reason, request.unfit, request.retracts_success)
        case messages.AnswerRequest():
            return events.QueryAnswered(request.agent_id, request.number, request.answer)


def _first_hold_s(settings: RunSettings, *, is_crowd: bool) -> float:
    longest_s = hold_s(settings.lease_s, CROWD_HOLDS_PER_LEASE if is_crowd else HOLDS_PER_LEASE)
    return min(max(FIRST_HOLD_S, settings.min_nodes * FIRST_HOLD_A_NODE_S), longest_s)
