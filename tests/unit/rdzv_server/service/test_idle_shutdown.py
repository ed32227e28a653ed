"""Exit of a server that was started for some runs, when it is idle."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from rdzv_protocol.actions import StopRequest
from rdzv_protocol.messages import Finish, Start, Stop

from rdzv_server.server import RendezvousServer
from rdzv_server.service import idle_shutdown
from rdzv_server.service.idle_shutdown import IdleWatch
from rdzv_server.service.interface import OperatorRequest
from rdzv_server.words import service as words
from tests.support.agent_side import PATIENCE_S, AgentSide, come_and_go
from tests.support.scenario import RUN_ID, Connection

LONG_S = 1000.0


class Site:
    """A server without HTTP, and its watch's log."""

    def __init__(self, **limits: int) -> None:
        self.server = RendezvousServer(**limits)
        self.idle = asyncio.Event()
        self.reasons: list[str] = []
        self.verdicts: list[bool] = []

    def watch(self, limit_s: float = LONG_S) -> None:
        self._watch = IdleWatch(self.server.rendezvous, limit_s, self._idle)

    @property
    def has_succeeded(self) -> bool:
        return self._watch.has_succeeded

    def agent(self, name: str) -> "Agent":
        return Agent(name, self.server)

    async def is_idle(self) -> str:
        async with asyncio.timeout(PATIENCE_S):
            await self.idle.wait()
        return self.reasons[0]

    def _idle(self, reason: str) -> None:
        self.reasons.append(reason)
        self.verdicts.append(self.has_succeeded)
        self.idle.set()


class Agent(AgentSide):
    """An agent with one connection."""

    def __init__(self, name: str, server: RendezvousServer) -> None:
        self._connection, self._rendezvous = Connection(name), server.rendezvous
        super().__init__(name, lambda request: self._rendezvous.ask(request, self._connection), disconnect_grace_s=0.01)
        self.hangs_up = partial(self._rendezvous.connections.lost, self._connection)

    def dies(self) -> None:
        """Its connection closes while its poll is parked."""
        with self._rendezvous.connections.parked(self._connection, (RUN_ID, self.name)):
            self.hangs_up()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    async with site.server:
        yield site


async def two(site: Site) -> tuple[Agent, Agent]:
    """Two agents of a running round."""
    a, b = site.agent("a"), site.agent("b")
    await asyncio.gather(a.join("2"), b.join("2"))
    await asyncio.gather(a.told(Start), b.told(Start))
    return a, b


async def b_is_away_at_the_end(site: Site) -> Agent:
    """Close the connection of agent b between its workers' success and the end of the run. Return that agent."""
    a, b = await two(site)
    await b.reports()
    b.hangs_up()
    await a.reports()
    await a.told(Finish)
    a.hangs_up()
    assert not site.reasons
    return b


@pytest.mark.parametrize("success", [True, False])
async def test_the_server_exits_when_the_last_agent_of_an_ended_run_disconnects(site: Site, success: bool) -> None:
    site.watch()
    a, b = await two(site)
    await a.reports(success=success)
    await b.reports(success=success)
    for agent in (a, b):
        await agent.told(Finish)
        assert not site.reasons
        agent.hangs_up()
    assert (site.reasons, site.verdicts) == ([words.ALL_RUNS_OVER], [success])


async def test_a_runs_last_attempt_decides_the_exit_code(site: Site) -> None:
    site.watch()
    attempts = [site.agent("a"), site.agent("b")]
    for agent, success in zip(attempts, (False, True), strict=True):
        await agent.join("1")
        await agent.told(Start)
        await agent.reports(success=success)
        await agent.told(Finish)
    for agent in attempts:
        agent.hangs_up()
    assert (site.reasons, site.verdicts) == ([words.ALL_RUNS_OVER], [True])


async def test_a_failed_run_counts_after_it_is_forgotten() -> None:
    site = Site(max_runs=1)
    async with site.server:
        rendezvous = site.server.rendezvous
        site.watch()
        await come_and_go(rendezvous, "bad", "b")
        await rendezvous.ask(OperatorRequest(StopRequest(run_id="bad"), "an operator"), Connection("b"))
        good = site.agent("a")
        await good.join("1")
        assert [run.run_id for run in rendezvous.runs()] == [RUN_ID]
        await good.told(Start)
        await good.reports()
        await good.told(Finish)
        assert not site.has_succeeded


async def test_an_agent_that_did_not_get_the_runs_end_can_return_for_it(site: Site) -> None:
    site.watch()
    b = await b_is_away_at_the_end(site)
    await b.told(Finish)
    b.hangs_up()
    assert site.reasons == [words.ALL_RUNS_OVER]


async def test_the_server_exits_when_its_only_agent_leaves(site: Site) -> None:
    site.watch()
    a = site.agent("a")
    await a.join("2")
    await a.leaves()
    assert not site.reasons
    a.hangs_up()
    assert site.reasons == [words.last_agent_left(RUN_ID)]
    assert site.verdicts == [False]


async def test_a_server_that_is_started_again_waits_for_the_agents_of_a_run_that_all_had_left(site: Site) -> None:
    a = site.agent("a")
    await a.join("1")
    await a.leaves()
    a.hangs_up()
    site.watch()
    assert not site.reasons
    again = site.agent("b")
    await again.join("1")
    await again.told(Start)
    await again.reports()
    await again.told(Finish)
    again.hangs_up()
    assert (site.reasons, site.verdicts) == ([words.ALL_RUNS_OVER], [True])


async def test_agents_that_are_lost_may_return_for_a_while(site: Site) -> None:
    site.watch(0.2)
    a, b = await two(site)
    a.hangs_up()
    b.hangs_up()
    assert not site.reasons
    assert await site.is_idle() == words.no_agents(0.2)
    assert site.verdicts == [False]


async def test_an_agent_that_never_returns_does_not_delay_the_verdict_for_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node died between its workers' success and the end of the run."""
    monkeypatch.setattr(idle_shutdown, "ENDED_S", 0.2)
    site.watch(LONG_S)
    await b_is_away_at_the_end(site)
    assert (await site.is_idle(), site.verdicts) == (words.no_agents(0.2), [True])


async def test_a_lost_nodes_supervisor_may_ask_for_a_while_how_the_run_ended(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_shutdown, "LINGER_S", 0.2)
    site.watch()
    a, b = site.agent("a"), site.agent("b")
    await a.join("1:2")
    await b.join("1:2")
    await a.told(Stop)  # b has arrived
    await a.join("1:2", after_round=1)
    await asyncio.gather(a.told(Start), b.told(Start))
    b.dies()
    await a.told(Stop)
    await a.join("1:2", after_round=2)
    await a.reports(round=3)
    await a.told(Finish)
    a.hangs_up()
    assert not site.reasons
    assert (await site.is_idle(), site.verdicts) == (words.ALL_RUNS_OVER, [True])


async def test_a_server_that_no_agent_ever_joined_is_idle(site: Site) -> None:
    site.watch(0.01)
    assert await site.is_idle() == words.no_agents(0.01)


async def test_the_wait_ends_when_an_agent_joins(site: Site) -> None:
    site.watch(0.0)
    a = site.agent("a")
    joined = await a.join("1")
    assert isinstance(joined.directive, Start)
    assert not site.reasons


async def test_a_second_connection_of_an_agent_keeps_the_server(site: Site) -> None:
    site.watch()
    a = site.agent("a")
    await a.join("1")
    another = Connection("another")
    site.server.rendezvous.connections.bind(another, (RUN_ID, "a"))
    await a.reports()
    await a.told(Finish)
    a.hangs_up()
    assert not site.reasons
    site.server.rendezvous.connections.lost(another)
    assert site.reasons == [words.ALL_RUNS_OVER]
