"""Plays a plan: starts the nodes of a run, lets happen what is to happen in each round, and checks every assignment."""

import asyncio
from collections.abc import Callable

from rdzv_protocol.settings import RequestedSettings

from tests.load.node import Node
from tests.load.plans import Deed, Plan

PATIENCE_S = 60.0
LEASE_S = 6.0
GRACE_S = 0.5


class Unplanned(AssertionError):
    """The run went another way. One line that says how."""


class Play:
    """One attempt of the run `run_id` on the server at this port."""

    def __init__(self, port: int, run_id: str, plan: Plan) -> None:
        self._port, self._run_id, self._plan = port, run_id, plan
        self._news = asyncio.Event()
        self._round = 1
        self._charged = 0
        self._nodes: list[Node] = []

    async def run(self) -> None:
        """Return when every node of the run has ended as planned. Raises `Unplanned`."""
        self._nodes = [self._node(number) for number in range(self._plan.nodes)]
        for deed, number in self._plan.deeds:
            await self._running()
            await self._do(deed, number)
            self._round += 1
            self._charged += deed is Deed.FAIL
        await self._running()
        await self._end()

    async def _do(self, deed: Deed, number: int) -> None:
        node = self._nodes[number]
        if deed is Deed.FAIL:
            node.fail()
            return
        await (node.leave() if deed is Deed.LEAVE else node.gone())
        self._nodes[number] = self._node(number)

    async def _end(self) -> None:
        if self._plan.succeeds:
            for node in self._nodes:
                node.succeed()
        else:
            self._nodes[0].fail()
        await self._until("every node has ended", lambda: all(node.exit_code is not None for node in self._nodes))
        codes = {node.exit_code for node in self._nodes}
        for node in self._nodes:
            await node.gone()
        if codes != {0 if self._plan.succeeds else 1}:
            raise Unplanned(f"{self._told()}: its nodes ended with {codes}")

    async def _running(self) -> None:
        """Return when the workers of every node run in this round; check what they were told."""
        await self._until(f"round {self._round} runs", self._is_running)
        told = [node.assignment for node in self._nodes if node.assignment]
        ranks = sorted(assignment.group_rank for assignment in told)
        restarts = {assignment.restart_count for assignment in told}
        if ranks != list(range(len(told))) or restarts != {self._charged}:
            raise Unplanned(f"{self._told()}: ranks {ranks}, {restarts} restarts instead of {self._charged}")

    def _is_running(self) -> bool:
        return all(node.assignment is not None and node.assignment.round == self._round for node in self._nodes)

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise Unplanned(f"{self._told()}: not within {PATIENCE_S:g} s: {what}") from None

    def _node(self, number: int) -> Node:
        settings = RequestedSettings(
            min_nodes=self._plan.nodes, max_nodes=self._plan.nodes, max_restarts=self._plan.charged,
            lease_s=LEASE_S, disconnect_grace_s=GRACE_S,
        )  # fmt: skip
        return Node(self._port, self._run_id, f"node-{number}", settings, self._news.set, rerun=True)

    def _told(self) -> str:
        heard = [f"{node.name}: {line}" for node in self._nodes for line in node.trouble]
        return f"run {self._run_id}, {self._plan}, round {self._round} ({'; '.join(heard) or 'no trouble heard of'})"
