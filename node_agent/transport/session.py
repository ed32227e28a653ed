"""What one agent of a run says to the server: the machine's requests as messages, and how they are delivered."""

import os
from collections.abc import Callable

from rdzv_protocol.messages import JoinRequest, LeaveRequest, PollRequest, Reply, ReportRequest

from node_agent.config import AgentConfig
from node_agent.core.effects import SendJoin, SendLeave, SendPoll, SendReport
from node_agent.transport.base import Link
from node_agent.transport.retrying import Conversation

Note = Callable[[str], None]


class RunLine:
    """One line for joins and polls, one beside it for reports and leaves. `warn` is told of trouble with them."""

    def __init__(self, config: AgentConfig, make_link: Callable[[], Link], endpoint: str, warn: Note) -> None:
        self._config = config
        self._secret = os.urandom(16).hex()
        """With each request: who knows no more than this agent's id cannot report or leave in its name."""
        self._conversation = Conversation(
            make_link(), endpoint, config.connect_timeout_s, warn, config.server_lost_timeout_s
        )
        # A report must arrive, however late.
        self._side_line = Conversation(make_link(), endpoint, float("inf"), None, has_joined=True)

    async def join(self, effect: SendJoin, port: int, *, hosts_store: bool) -> Reply:
        """The answer to a join that names this port as MASTER_PORT. Raises `ProtocolError` or `ServerLost`."""
        return await self._ask(lambda addr: self._join_request(effect, addr, port, hosts_store))

    async def poll(self, effect: SendPoll) -> Reply:
        """The answer to a poll. Raises `ProtocolError` or `ServerLost`."""
        poll = PollRequest(
            run_id=self._config.run_id,
            agent_id=effect.agent_id,
            revision=effect.revision,
            hold=effect.hold,
            secret=self._secret,
        )
        return await self._ask(lambda addr: poll)

    async def tell(self, effect: SendReport | SendLeave) -> None:
        """Deliver a message that needs no answer. Raises `ProtocolError` or `ServerLost`."""
        sender = {"run_id": self._config.run_id, "secret": self._secret}
        message: ReportRequest | LeaveRequest
        match effect:
            case SendReport(agent_id, round_, failure):
                message = ReportRequest(**sender, agent_id=agent_id, round=round_, failure=failure)
            case SendLeave(agent_id, reason):
                message = LeaveRequest(**sender, agent_id=agent_id, reason=reason)
        await self._side_line.ask(lambda addr: message)

    async def close(self) -> None:
        await self._conversation.close()
        await self._side_line.close()

    async def _ask(self, request: Callable[[str], JoinRequest | PollRequest]) -> Reply:
        reply = await self._conversation.ask(request)
        assert isinstance(reply, Reply)
        return reply

    def _join_request(self, effect: SendJoin, addr: str, port: int, hosts_store: bool) -> JoinRequest:
        config = self._config
        return JoinRequest(
            run_id=config.run_id,
            agent_id=effect.agent_id,
            node_id=config.node_id,
            after_round=effect.after_round,
            returning=effect.returning,
            addr=config.local_addr or addr,
            port=port,
            local_world_size=config.nproc,
            role=config.role,
            node_rank=config.node_rank,
            preferred_rank=config.preferred_rank,
            settings=config.settings,
            explicit_run_id=config.explicit_run_id,
            rerun=config.rerun,
            hosts_store=hosts_store,
            secret=self._secret,
        )
