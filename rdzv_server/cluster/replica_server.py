"""A whole server that is one of several: `--store etcd://HOST,HOST,HOST/CLUSTER`."""

import asyncio
from functools import partial
from types import TracebackType
from typing import Self

from rdzv_server.auth.authorization import Access
from rdzv_server.cluster.election import Candidacy
from rdzv_server.cluster.replica import Failover
from rdzv_server.cluster.sharding import Shards
from rdzv_server.config import Limits
from rdzv_server.server import HttpServer
from rdzv_server.storage.etcd import EtcdStore
from rdzv_server.storage.etcd_address import EtcdPlace
from rdzv_server.storage.etcd_client import EtcdClient, EtcdTls


class FailoverServer(HttpServer):
    """HTTP in front of a server that leads or follows. `address`: HOST:PORT by which agents reach it.

    `shards`: how many parts the runs are shared in; 1: one server leads them all.
    """

    def __init__(
        self,
        place: EtcdPlace,
        tls: EtcdTls | None,
        *,
        address: str,
        lease_s: int,
        shards: int,
        retention_s: float,
        max_runs: int,
        access: Access,
        limits: Limits,
    ) -> None:
        self._client = client = EtcdClient(place.members, tls)
        self._several: Failover | Shards
        if shards > 1:
            self._several = Shards(
                client,
                place.prefix,
                address,
                lease_s=lease_s,
                shards=shards,
                retention_s=retention_s,
                max_runs=max_runs,
            )
        else:
            candidacy = Candidacy(client, place.prefix, address, lease_s)
            make_store = partial(EtcdStore, client, place.prefix)
            self._several = Failover(candidacy, address, make_store, retention_s, max_runs)
        super().__init__(self._several, access, limits)

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._several.run(), name="failover")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.cancel()  # it resigns, so that agents that are sent away find another one that leads
        await asyncio.gather(self._running, return_exceptions=True)
        self._several.close()
        await self.close_http()
        await self._client.close()

    async def crashed(self) -> None:
        await asyncio.shield(self._running)
