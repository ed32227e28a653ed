"""Follower of a cluster's cordons: one shard decides about nodes, and the leaders of all other shards follow it.

The leader of another shard reads the records of shard 0's leader about nodes. It does so before it answers any request,
and again after every change. See ADR 41.
"""

import logging
import time
from typing import Any

from rdzv_protocol.errors import ProtocolError

from rdzv_server.core import events, journals
from rdzv_server.core.nodes.state import NodesState
from rdzv_server.service.driver import Driver
from rdzv_server.storage.base import StoreBroken
from rdzv_server.storage.etcd import folder_of, read_journal
from rdzv_server.storage.etcd_client import EtcdClient, end_of
from rdzv_server.storage.outage import Outage
from rdzv_server.words import cluster as words

log = logging.getLogger("rdzv_server")

DECIDES = 0
"""Shard whose leader decides about nodes."""
RETRY_S = 1.0
SOON_S = 1.0
"""Seconds before a cordon's end from which it is no longer followed: by this shard's clock it may have ended."""


class CordonFollower:
    """Follower of shard 0's cordons for one other shard. `root`: prefix of shard 0's keys."""

    def __init__(self, client: EtcdClient, root: str) -> None:
        self._client = client
        self._folder = folder_of(root, *journals.NODES)
        self._revision = 0

    async def catch_up(self, driver: Driver) -> None:
        """Apply what shard 0's journal has and this shard has not. Raises `StoreBroken` or `StoreUnavailable`."""
        records, self._revision = await read_journal(self._client, self._folder)
        decided = NodesState()
        for record in records:
            decided.apply(record.fact, record.at)  # type: ignore[arg-type]
        for fact in differences(decided, driver.registry.nodes.state, time.time()):
            try:
                await driver.act(None, fact)
            except ProtocolError as error:
                log.warning(words.cannot_cordon(fact.node_id, str(error)))

    async def catch_up_at_last(self, driver: Driver) -> None:
        """Catch up, even if etcd does not answer for a long time.

        If shard 0's journal is damaged, this shard keeps the cordons that it knows: its runs need a leader more.
        """
        outage = Outage(lambda: words.CORDONS_NOT_FOLLOWED, logs_silence=False)
        try:
            await outage.outlast(lambda: self.catch_up(driver), RETRY_S)
        except StoreBroken as error:
            self._revision = self._client.revision
            log.error(words.keeps_cordons(str(error)))

    async def run(self, driver: Driver) -> None:
        """Apply everything that shard 0 records, forever."""
        while True:
            await self._client.changed(self._folder, self._revision + 1, end_of(self._folder))
            await self.catch_up_at_last(driver)


def differences(decided: NodesState, known: NodesState, wall_now: float) -> list[events.NodeOperation]:
    """Return the facts by which this shard's `known` cordons follow what shard 0 has `decided`, by another clock.

    A node that this shard itself excludes stays excluded until its time is over, or until an operator has uncordoned
    it. An exclusion by shard 0 ends with shard 0's, also if this server's clock is behind.
    """
    facts: list[events.NodeOperation] = [
        events.NodeUncordoned(node_id=node_id)
        for node_id, cordon in known.cordons.items()
        if node_id not in decided.cordons
        and (not cordon.excludes or cordon.is_followed or decided.lifted.get(node_id, 0.0) > (cordon.wall_at or 0.0))
    ]
    for node_id, cordon in decided.cordons.items():
        own, until = known.cordons.get(node_id), cordon.wall_until
        is_done = own is not None and own.wall_at == cordon.wall_at
        if not is_done and (until is None or until > wall_now + SOON_S):
            facts.append(_repeated(cordon, wall_now))
    return facts


def _repeated(cordon: events.Cordon, wall_now: float) -> events.NodeOperation:
    given: dict[str, Any] = {
        "reason": cordon.reason, "by": cordon.by, "request_id": cordon.request_id, "node_id": cordon.node_id,
        "wall_at": cordon.wall_at, "wall_until": cordon.wall_until, "general": cordon.general, "is_followed": True,
        "for_s": None if cordon.wall_until is None else cordon.wall_until - wall_now,
    }  # fmt: skip
    if cordon.drain_s is None:
        return events.NodeCordoned(**given)
    left_s = max(0.0, (cordon.wall_at or wall_now) + cordon.drain_s - wall_now)
    return events.NodeDrained(deadline_s=left_s, **given)
