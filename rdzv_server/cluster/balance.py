"""How shards come to be shared evenly: who leads more than its part leaves one to a server that leads fewer.

One shard at a time, in an order that all servers agree on, and only to a server that is trusted to take it (`trust`).
Leaving a shard costs its runs a few hundredths of a second.
"""

import asyncio
import logging
from collections.abc import Callable

from rdzv_server.cluster.backoff import Trust
from rdzv_server.cluster.lease import RETRY_S
from rdzv_server.cluster.membership import Presence, View
from rdzv_server.cluster.placement import Move, next_move
from rdzv_server.cluster.shard_candidacy import ShardLeadership

log = logging.getLogger("rdzv_server")

TAKEN_WITHIN_S = 10.0
"""A shard that has no leader for longer is in trouble of its own, and nobody waits for it."""


class Balance:
    """This server's part in it. `leadership_of`: its latest leadership of a shard, if any."""

    def __init__(
        self, presence: Presence, settle_s: float, leadership_of: Callable[[int], ShardLeadership | None]
    ) -> None:
        self._presence = presence
        self._leadership_of = leadership_of
        self._trust = Trust(settle_s)
        self._free_since: dict[int, float] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            now = asyncio.get_running_loop().time()
            view = self._presence.view
            if view is None:
                await self._presence.news()
                continue
            self._trust.see(view.servers, now)
            self._note_free(view, now)
            move = self._own_move(view, now)
            if move is None:
                await self._presence.news(TAKEN_WITHIN_S if self._free_since else None)
            elif not self._trust.trusts(move.receiver, now):
                await self._presence.news(self._trust.since(move.receiver) - now)
            else:
                await self._make(move, view)

    def _note_free(self, view: View, now: float) -> None:
        """Since when each shard that has no leader has none."""
        free = set(range(self._presence.shards)) - view.leaders.keys()
        self._free_since = {shard: self._free_since.get(shard, now) for shard in free}

    def _own_move(self, view: View, now: float) -> Move | None:
        """The next one, if it is this server's, and no other one is under way."""
        if any(now - since < TAKEN_WITHIN_S for since in self._free_since.values()):
            return None
        move = next_move(self._presence.shards, view.servers, view.addresses)
        return move if move and move.giver == self._presence.address else None

    async def _make(self, move: Move, view: View) -> None:
        """Leave the shard, and see who takes it."""
        leadership = self._leadership_of(move.shard)
        if leadership is None or leadership.number != view.leaders[move.shard].number:
            await self._presence.news(RETRY_S)  # the view is of the past
            return
        leadership.leave_to(move.receiver)
        taker = None
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                taker = await self._taker(move.shard, leadership.number)
        except TimeoutError:
            pass
        if taker != move.receiver:
            log.warning("shard %d: %s has not taken it", move.shard, move.receiver)
            self._trust.failed(move.receiver, asyncio.get_running_loop().time())

    async def _taker(self, shard: int, after: int) -> str:
        """Who leads the shard next."""
        while True:
            leader = self._presence.view.leaders.get(shard) if self._presence.view else None
            if leader and leader.number > after:
                return leader.address
            await self._presence.news()
