"""Several servers over a real etcd, the agents of a run, and a probe that tells how soon another server answers."""

import asyncio
import json
import os
import signal
import sys
import time
from base64 import b64decode
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rdzv_protocol.messages import JoinRequest, PollRequest, Reply, Start
from rdzv_protocol.settings import RequestedSettings

from node_agent.transport.failover import Failover
from node_agent.transport.retrying import RetryingClient
from tests.integration.conftest import Cluster
from tests.integration.desk import Desk
from tests.integration.programs import PATIENCE_S, Program, Server, start_agent
from tests.integration.taps import Answers, Tap
from tests.support.etcd import Etcd

LEASE_S = 2
TAKEOVER_S = LEASE_S + 1.0


class OneOfSeveral(Server):
    """A server with its tap, by which agents reach it."""

    tap: Tap

    async def view(self) -> dict[str, Any]:
        return dict(json.loads(await self.get("/v1/status")))

    async def leads(self) -> None:
        await self.line("leading: ")

    async def is_leader(self) -> bool:
        return bool((await self.view())["server"]["leads"])


class Several(Cluster):
    """Servers that share an etcd, and agents that know all of them."""

    def __init__(self, desk: Desk, etcd: Etcd, name: str, shards: int = 1) -> None:
        super().__init__(desk)
        self.etcd = etcd
        self.name = name
        self.answers = Answers(shards)

    @property
    def store(self) -> str:
        """For `--store`."""
        return f"{self.etcd.store}/{self.name}"

    async def serve_as(
        self, members: Sequence[str] | None = None, *flags: str, tap: Tap | None = None
    ) -> OneOfSeveral:  # fmt: skip
        """Start another server. `members`: the addresses by which it reaches etcd. `tap`: of one that is gone."""
        if tap is None:
            tap = Tap(self.answers)
            await tap.open()
        store = f"etcd://{','.join(members)}/{self.name}" if members else self.store
        flags = ("--store", store, "--leader-lease", str(LEASE_S), "--advertise", tap.address, *flags)
        server = await OneOfSeveral.listen(*flags)
        assert isinstance(server, OneOfSeveral)
        server.tap, tap.target = tap, ("127.0.0.1", server.port)
        self.servers.append(server)
        return server

    async def leader(self) -> OneOfSeveral:
        """The one that leads; it must be there."""
        for server in self.servers:
            assert isinstance(server, OneOfSeveral)
            if server.process.returncode is None and await server.is_leader():
                return server
        raise AssertionError("nobody leads")

    def others(self, leader: OneOfSeveral) -> list[OneOfSeveral]:
        return [server for server in self.servers if server is not leader and isinstance(server, OneOfSeveral)]

    async def next_leader(self, before: OneOfSeveral) -> OneOfSeveral:
        """Return when another one leads."""
        waiting = {asyncio.create_task(other.leads()): other for other in self.others(before)}
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return waiting[done.pop()]

    @property
    def endpoints(self) -> str:
        return ",".join(server.tap.address for server in self.servers if isinstance(server, OneOfSeveral))

    async def node(self, node_id: str, *flags: str, nproc: int = 2, env: dict[str, str] | None = None) -> Program:
        """Start an agent that knows every server."""
        flags = flags if "--endpoint" in flags else ("--endpoint", self.endpoints, *flags)
        agent = await start_agent(
            *flags, "--node-id", node_id, "--nproc", str(nproc), script=self.script,
            env={**self.desk.env, **(env or {})},
        )  # fmt: skip
        self.agents[node_id] = agent
        return agent

    def records(self) -> dict[str, int]:
        """The keys of all records in etcd, each with the revision at which it was written."""
        found = json.loads(self.etcd.ctl("get", "--prefix", f"/rdzv-server/{self.name}/shards/", "-w", "json"))
        return {b64decode(key["key"]).decode(): int(key["mod_revision"]) for key in found["kvs"]}

    async def end(self) -> None:
        for server in self.servers:
            if server.process.returncode is None:
                server.signal(signal.SIGCONT)
        await super().end()
        self._show()
        for server in self.servers:
            assert isinstance(server, OneOfSeveral)
            await server.tap.close()

    def _show(self) -> None:
        """What everybody said, for a test that fails."""
        for number, server in enumerate(self.servers):
            print(*(f"server {number} {line}" for line in server.err), sep="\n", file=sys.stderr)
        for name, agent in self.agents.items():
            print(*(f"agent {name} {line}" for line in agent.err), sep="\n", file=sys.stderr)


class Probe:
    """An agent of a run of its own, message by message: it notices at once when a server acts."""

    def __init__(self, endpoints: str, run_id: str = "probe") -> None:
        self._run_id = run_id
        pairs = [endpoint.rpartition(":") for endpoint in endpoints.split(",")]
        self.said: list[str] = []
        self._servers = Failover([(host, int(port)) for host, _, port in pairs], None, self.said.append)
        self._line = RetryingClient(self._servers.transport(), lambda error: self.said.append(str(error)))

    async def __aenter__(self) -> "Probe":
        join = JoinRequest(
            run_id=self._run_id, agent_id="probe", node_id="probe", after_round=0, addr="127.0.0.1", port=1,
            local_world_size=1, settings=RequestedSettings(lease_s=600.0, disconnect_grace_s=600.0),
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE_S):
            self.reply = await self._line.ask(join)
        assert isinstance(self.reply, Reply) and isinstance(self.reply.directive, Start)
        self.leadership = self.reply.leadership
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._line.close()

    async def answered(self) -> float:
        """Ask once; when the answer has come (monotonic)."""
        poll = PollRequest(run_id=self._run_id, agent_id="probe", revision=self.reply.revision, hold=False)
        async with asyncio.timeout(PATIENCE_S):
            answer = await self._line.ask(poll)
        assert isinstance(answer, Reply) and answer.directive == self.reply.directive
        self.leadership = answer.leadership
        return time.monotonic()

    async def takeover_s(self, since: float) -> float:
        """How long after `since` another server acts."""
        before = self.leadership
        took_s = await self.answered() - since
        while self.leadership == before:
            took_s = await self.answered() - since
        print(f"took over after {took_s:.2f} s", file=sys.stderr)
        return took_s


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
