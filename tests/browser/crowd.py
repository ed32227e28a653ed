"""Runs of many nodes without processes: real agents' machines and connections, with simulated workers."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from rdzv_protocol.settings import RequestedSettings

from tests.load.node import Node
from tests.support.changes import Changes
from tests.support.programs import PATIENCE_S


class Crowd:
    """Runs at one server. An async context manager that closes every connection."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._port, self._token = port, token
        self._nodes: dict[str, list[Node]] = {}
        self._changed = Changes(PATIENCE_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(node.gone() for nodes in self._nodes.values() for node in nodes))

    async def run(self, run_id: str, names: Sequence[str], *, seats: int = 0, **settings: Any) -> list[Node]:
        """Start a run. Its first round runs on `seats` nodes, or on all of these."""
        seats = seats or len(names)
        asked = RequestedSettings(min_nodes=seats, max_nodes=seats, lease_s=600.0, **settings)
        nodes = [Node(self._port, run_id, name, asked, self._changed.set, self._token) for name in names]
        self._nodes.setdefault(run_id, []).extend(nodes)
        await self._changed.until(lambda: sum(node.assignment is not None for node in nodes) == seats)
        return nodes

    async def fail(self, run_id: str, at: int = 0, **evidence: Any) -> None:
        """Let a worker of one node fail. Return when the next round runs, or the run has ended."""
        nodes = [node for node in self._nodes[run_id] if node.assignment]
        rounds = nodes[at].assignment.round if nodes[at].assignment else 0
        nodes[at].fail(**evidence)
        await self._changed.until(lambda: all(_is_past(node, rounds) for node in nodes))


def _is_past(node: Node, round_: int) -> bool:
    return node.exit_code is not None or (node.assignment is not None and node.assignment.round > round_)
