"""What one agent of a run says to the server: the machine's requests as messages, and how they are delivered."""

from collections.abc import Callable

from node_agent.config import AgentConfig
from node_agent.conversation import Conversation, ServerLost
from node_agent.core.effects import SendJoin, SendLeave, SendPoll, SendReport
from node_agent.link import Link
from protocol.errors import AgentFenced, ProtocolError, StaleRound
from protocol.messages import JoinRequest, LeaveRequest, PollRequest, Reply, ReportRequest

Note = Callable[[str], None]


class RunLine:
    """One line for joins and polls, one beside it for reports and leaves."""

    def __init__(self, config: AgentConfig, make_link: Callable[[], Link], endpoint: str, *, say: Note, warn: Note):
        self._config = config
        self._say = say
        self._conversation = Conversation(make_link(), endpoint, config.connect_timeout_s, warn)
        self._side_line = Conversation(make_link(), endpoint, float("inf"), None)  # a report must arrive, however late

    async def ask(self, effect: SendJoin | SendPoll, port: int) -> Reply:
        """The answer to a join, which names the port, or to a poll. Raises `ProtocolError` or `ServerLost`."""
        match effect:
            case SendJoin():
                reply = await self._conversation.ask(lambda addr: self._join(effect, addr, port))
            case SendPoll(agent_id, revision, hold):
                poll = PollRequest(run_id=self._config.run_id, agent_id=agent_id, revision=revision, hold=hold)
                reply = await self._conversation.ask(lambda addr: poll)
        assert isinstance(reply, Reply)
        return reply

    async def tell(self, effect: SendReport | SendLeave) -> None:
        """Deliver a message that needs no answer."""
        run_id = self._config.run_id
        message: ReportRequest | LeaveRequest
        match effect:
            case SendReport(agent_id, round_, failure):
                message = ReportRequest(run_id=run_id, agent_id=agent_id, round=round_, failure=failure)
            case SendLeave(agent_id, reason):
                message = LeaveRequest(run_id=run_id, agent_id=agent_id, reason=reason)
        try:
            await self._side_line.ask(lambda addr: message)
        except (AgentFenced, StaleRound, ServerLost):
            pass  # the run has gone on without it; the conversation hears what there is to do
        except ProtocolError as error:
            self._say(f"rdzv-server refused a {type(message).__name__}: {error}")

    async def close(self) -> None:
        await self._conversation.close()
        await self._side_line.close()

    def _join(self, effect: SendJoin, addr: str, port: int) -> JoinRequest:
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
            settings=config.settings,
            explicit_run_id=config.explicit_run_id,
        )
