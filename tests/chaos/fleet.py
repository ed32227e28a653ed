"""The run that the monkey lives in: eight nodes of two workers, a server with its disk, and all that can befall them."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.chaos.disk import Disk
from tests.chaos.training import Folder
from tests.hosts.cluster import SERVER, Hosts
from tests.hosts.network import Network
from tests.integration.desk import Desk, WorkerAtDesk, is_running
from tests.integration.programs import Program

NODES = "abcdefgh"
NPROC = 2
MIN_NODES = 4
LEASE_S = 5.0
PATIENCE_S = 60.0
"""How long the fleet may take to work again: a lease, TCP's pauses, and a busy machine."""
LOOK_S = 0.05
WORKER = str(Path(__file__).with_name("worker.py"))
MARK = "TEST_FLEET"
"""In the environment of every process of the run, the test's folder."""
FLAGS = (
    *("--run-id", "chaos", "--nnodes", f"{MIN_NODES}:{len(NODES)}", "--max-restarts", "100000"),
    *("--lease", f"{LEASE_S:g}", "--shutdown-timeout", "30"),
)

View = dict[str, Any]


class Unsettled(AssertionError):
    """The run did not work again within the time that it may take. Says what was missing."""


class Fleet(Hosts):
    """Agents by their nodes' names. `up` are the nodes that should be in the run."""

    def __init__(self, desk: Desk, network: Network, folder: Path, disk: Disk) -> None:
        training = folder / "training"
        super().__init__(desk, network, training)
        self.script = WORKER
        self.disk = disk
        self.training = Folder(training)
        self.temporary = folder / "tmp"
        self.up: set[str] = set()
        self.crew: list[WorkerAtDesk] = []
        """The workers of the round that was seen at work last, by rank."""
        self._mark = str(folder)
        self._training.mkdir()
        self.temporary.mkdir()

    # Nodes.

    async def start_agent(self, name: str) -> None:
        await self.node(name, *FLAGS, nproc=NPROC)
        self.up.add(name)

    async def kill_agents(self, *names: str) -> None:
        """All at once."""
        for name in names:
            self.agents[name].signal(signal.SIGKILL)
        for name in names:
            await self.agents.pop(name).exit_code()
            self.up.discard(name)

    async def dismiss_agent(self, name: str) -> None:
        """SIGTERM: it leaves the run."""
        agent = self.agents.pop(name)
        agent.signal(signal.SIGTERM)
        self.up.discard(name)
        assert await agent.exit_code() == 1, agent.err

    def workers_of(self, name: str) -> list[WorkerAtDesk]:
        return [worker for worker in self.crew if worker.env["TEST_HOST"] == name]

    # The server.

    async def start_server(self) -> None:
        await self.serve("--store", f"sqlite:{self.disk.path}/state.db")

    async def kill_server(self) -> None:
        self.server.signal(signal.SIGKILL)
        await self.server.exit_code()

    async def end_server(self) -> None:
        """SIGTERM."""
        self.server.signal(signal.SIGTERM)
        assert await self.server.exit_code() == 0, self.server.err

    # The whole.

    async def begin(self) -> None:
        await self.start_server()
        for name in NODES:
            await self.start_agent(name)
        await self.agents[NODES[0]].line("waiting for|standing by|round 1")

    async def works(self) -> View:
        """The run, once exactly the nodes that are `up` are in it, in touch with the server, and train together."""
        since = time.monotonic()
        view = await self._until(lambda view: self._why_not(view, since))
        await self.crew[0].tell("steps 3")
        return view

    async def stops(self, name: str) -> None:
        """Return when the next round waits for this node alone to stop its workers."""
        await self._until(lambda view: _unless((view["missing"] or {}).get("stopping") == [name], f"{name} to stop"))

    async def waits(self, name: str) -> None:
        """Return when this node's agent was told to wait until others have stopped their workers."""
        await self.agents[name].line("waiting for .* to stop the workers")

    async def deserted(self) -> None:
        """Return when the server has given up every node."""
        await self._until(lambda view: _unless(not view["nodes"], "no node to be left"))

    async def in_trouble(self) -> None:
        """Return when the server cannot write."""
        await self._until(lambda view: _unless(view["server"]["trouble"], "trouble"))

    async def finish_run(self) -> None:
        """Let the workers end: the run succeeds, and every agent says so."""
        for worker in self.crew:
            worker.order_exit(0)
        codes = {name: await agent.exit_code() for name, agent in self.agents.items()}
        assert set(codes.values()) == {0}, codes

    def leftovers(self) -> list[str]:
        """What there is of the run that should not be there once it is over."""
        inside = [f"process {pid} on host {name}" for name, pids in self.network.processes().items() for pid in pids]
        listening = [
            f"port {port} on host {name}"
            for name, host in self.network.hosts.items()
            for port in host.namespace.listening()
        ]
        files = [str(path) for path in self.temporary.rglob("*")]
        state = [str(path) for path in self.disk.path.iterdir() if path.name != "state.db"]
        return [*inside, *self._marked(), *listening, *files, *state]

    async def end(self) -> None:
        for program in [*self.agents.values(), *self.servers]:
            if program.process.returncode is None:
                program.signal(signal.SIGCONT)
        for worker in self.desk.all:
            if is_running(worker.pid):
                os.kill(worker.pid, signal.SIGCONT)
        await super().end()

    def _environment(self, name: str) -> dict[str, str]:
        return {**super()._environment(name), **self._lockstep, MARK: self._mark, "TMPDIR": str(self.temporary)}

    async def _until(self, why_not: Callable[[View], str]) -> View:
        """The run, once there is no reason why not. Raises `Unsettled` with the last one."""
        until, why = time.monotonic() + PATIENCE_S, "the server does not answer"
        while time.monotonic() < until:
            with suppress(OSError, HTTPException):  # the server may be down at the moment
                view = await self.view()
                if not (why := why_not(view)):
                    return view
            await asyncio.sleep(LOOK_S)
        raise Unsettled(f"after {PATIENCE_S:g} s still: {why}")

    async def view(self) -> View:
        """The run as operators see it, with what they see of the server."""
        status = json.loads(await self.server.get("/v1/status"))
        assert len(status["runs"]) == 1, "one run, in its first attempt"
        return {**status["runs"][0], "server": status["server"]}

    def _why_not(self, view: View, since: float) -> str:
        if _states(view) != {(name, "running") for name in self.up}:
            return f"{view['phase']}: {view['reason']}; nodes: {sorted(_states(view))}"
        if silent := [node["node_id"] for node in view["nodes"] if node["lease_age_s"] > time.monotonic() - since]:
            return f"not heard of: {', '.join(silent)}"
        self.crew = self._newest_crew()
        if (ranks := [worker.rank for worker in self.crew]) != list(range(NPROC * len(self.up))):
            return f"only these ranks have met: {ranks}"
        return ""

    def _newest_crew(self) -> list[WorkerAtDesk]:
        """The workers that are there of the round that reported last."""
        newest = _meeting_place(self.desk.all[-1]) if self.desk.all else ""
        crew = [each for each in self.desk.all if _meeting_place(each) == newest and is_running(each.pid)]
        return sorted(crew, key=lambda worker: worker.rank)

    def _marked(self) -> list[str]:
        mark = f"{MARK}={self._mark}".encode()
        return [f"process {pid}" for pid in _pids() if mark in _environ(pid).split(b"\0")]


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    """A fleet that is at work, of which nothing is left afterwards."""
    folder.mkdir(exist_ok=True)
    with Disk(folder / "disk") as disk:
        async with Network(SERVER + NODES) as network, Desk(folder / "desk") as desk:
            fleet = Fleet(desk, network, folder, disk)
            try:
                await fleet.begin()
                yield fleet
            except BaseException:
                fleet_story(fleet)
                raise
            finally:
                await fleet.end()


def fleet_story(fleet: Fleet) -> None:
    """What everybody said last, for a person who looks into a failure."""
    programs: dict[str, Program] = {f"server {n}": server for n, server in enumerate(fleet.servers, start=1)}
    for name, program in (programs | {f"agent {name}": agent for name, agent in sorted(fleet.agents.items())}).items():
        print(*(f"{name}: {line}" for line in program.err[-30:]), sep="\n", file=sys.stderr)


def _unless(met: object, wanted: str) -> str:
    return "" if met else f"waiting for {wanted}"


def _states(view: View) -> set[tuple[str, str]]:
    return {(node["node_id"], node["state"]) for node in view["nodes"]}


def _meeting_place(worker: WorkerAtDesk) -> str:
    return f"{worker.env['MASTER_ADDR']}:{worker.env['MASTER_PORT']}"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone
        return b""
