"""Many runs at once, each drawn from a seed, played node by node, and followed by the next one."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rdzv_protocol.settings import RequestedSettings

from tests.load.node import Node

PATIENCE_S = 60.0
LEASE_S = 10.0
"""Lease in seconds. Agents wait for an answer for three quarters of it, also on a busy machine. Nodes of many runs that
vanish at the same time are lost when their leases end."""
GRACE_S = 0.5
MOST_ACTIONS = 3


class Action(StrEnum):
    FAIL = "a worker fails"
    DIE = "a node is lost and comes back"
    LEAVE = "a node leaves and comes back"


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt of a run. `actions`: by round, each with its node."""

    nodes: int
    actions: tuple[tuple[Action, int], ...] = ()
    succeeds: bool = True
    """Whether the run succeeds. Otherwise a worker fails when no restart is left."""

    @classmethod
    def draw(cls, rng: random.Random) -> "Plan":
        nodes = rng.randint(2, 4)
        actions = [(rng.choice(list(Action)), rng.randrange(nodes)) for _ in range(rng.randint(0, MOST_ACTIONS))]
        return cls(nodes, tuple(actions), succeeds=rng.random() < 0.8)

    @property
    def charged(self) -> int:
        """Charged restarts: those after a worker's failure."""
        return sum(action is Action.FAIL for action, _ in self.actions)


class Unplanned(AssertionError):
    """The run deviated from its plan. One line says how."""


class Attempt:
    """Attempt of the run `run_id` at the server at this port: starts its nodes, acts, and checks each assignment."""

    def __init__(self, port: int, run_id: str, plan: Plan) -> None:
        self._port, self._run_id, self._plan = port, run_id, plan
        self._changed = asyncio.Event()
        self._round = 1
        self._charged = 0
        self._nodes: list[Node] = []

    async def run(self) -> None:
        """Return when every node of the run has ended as planned. Raises `Unplanned`."""
        self._nodes = [self._node(number) for number in range(self._plan.nodes)]
        for action, number in self._plan.actions:
            await self._running()
            await self._act(action, number)
            self._round += 1
            self._charged += action is Action.FAIL
        await self._running()
        await self._end()

    async def _act(self, action: Action, number: int) -> None:
        node = self._nodes[number]
        if action is Action.FAIL:
            node.fail()
            return
        await (node.leave() if action is Action.LEAVE else node.gone())
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
            raise Unplanned(f"{self}: its nodes ended with {codes}")

    async def _running(self) -> None:
        """Return when the workers of every node run in this round. Check their assignments."""
        await self._until(f"round {self._round} runs", self._is_running)
        assignments = [node.assignment for node in self._nodes if node.assignment]
        ranks = sorted(assignment.group_rank for assignment in assignments)
        restarts = {assignment.restart_count for assignment in assignments}
        if ranks != list(range(len(assignments))) or restarts != {self._charged}:
            raise Unplanned(f"{self}: ranks {ranks}, {restarts} restarts instead of {self._charged}")

    def _is_running(self) -> bool:
        return all(node.assignment is not None and node.assignment.round == self._round for node in self._nodes)

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Unplanned(f"{self}: not within {PATIENCE_S:g} s: {what}") from None

    def _node(self, number: int) -> Node:
        settings = RequestedSettings(
            min_nodes=self._plan.nodes, max_nodes=self._plan.nodes, max_restarts=self._plan.charged,
            lease_s=LEASE_S, disconnect_grace_s=GRACE_S,
        )  # fmt: skip
        return Node(self._port, self._run_id, f"node-{number}", settings, self._changed.set)

    def __str__(self) -> str:
        warnings = [f"{node.name}: {line}" for node in self._nodes for line in node.warnings]
        return f"run {self._run_id}, {self._plan}, round {self._round} ({'; '.join(warnings) or 'no warnings'})"


class Soak:
    """Runs on the server at this port. Every other one is the same run again, in one attempt after another."""

    def __init__(self, port: int, *, runs: int, seed: int = 0) -> None:
        self.played = 0
        self._port = port
        self._runs = runs
        self._rng = random.Random(seed)

    async def play(self) -> None:
        """Play this number of runs at once, to their ends. Raises `Unplanned`."""
        async with asyncio.TaskGroup() as attempts:
            for number in range(self._runs):
                run_id = f"run-{number}" if number % 2 else f"run-{number}-{self.played + number}"
                attempts.create_task(Attempt(self._port, run_id, Plan.draw(self._rng)).run())
        self.played += self._runs
