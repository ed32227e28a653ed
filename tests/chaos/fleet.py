"""The run for the monkey: eight nodes with two workers each, and a server with its disk, or several over an etcd."""

import asyncio
import json
import os
import random
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from http.client import HTTPException
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.paths import DEFAULT_PORT, NODE_COSTS

from tests.chaos import stranger, traces
from tests.hosts.cluster import SERVER, Hosts, ServerOnHost
from tests.hosts.network import Network
from tests.support import proxies
from tests.support.certificates import Authority
from tests.support.disk import Disk
from tests.support.process_info import children, is_running, until
from tests.support.programs import Program
from tests.support.worker_hub import Worker, WorkerHub

NODES = "abcdefgh"
MIN_NODES = 4
LEASE_S = 6.0
PATIENCE_S = 60.0
"""Seconds that the fleet may take to work again: a lease, TCP's pauses, and a busy machine."""
CHECK_INTERVAL_S = 0.4
STEP_S = 0.2
"""Seconds between two looks at the run, and between training steps: long, to leave processor time for the actions."""
RUN = "chaos"
STATE_FILES = "state.db", "state.db.last-record"
FLAGS = (
    *("--run-id", RUN, "--nnodes", f"{MIN_NODES}:{len(NODES)}"),
    *("--lease", f"{LEASE_S:g}", "--shutdown-timeout", "30"),
)
WARM = "json", "pathlib", "socket", "threading", "node_agent"
"""Modules with which workers begin. Workers of some fleets need others too, whose import takes longer than a start."""
NOTICE_TIMEOUT_S = 10.0

TOKENS = {"agents": "chaos-agents-4f9d", "readers": "chaos-readers-81c2", "operators": "chaos-operators-a7e0"}
ETCD = "127.0.0.1:2379"

PROXY, STRANGER = "p", "x"
"""Hosts of the proxy and of the strangers."""
_CONFIGURATIONS: Mapping[proxies.Kind, Callable[[str], str]] = {
    "nginx": partial(proxies.nginx_configuration, str(DEFAULT_PORT)),
    "haproxy": partial(
        proxies.haproxy_configuration,
        f":{DEFAULT_PORT}",
        settings="  timeout connect 2s\n  option http-server-close\n  option abortonclose",
    ),
}
"""Functions that return a proxy's configuration for a server's address. nginx has its defaults; haproxy also closes a
connection after each answer."""
NAME = "rdzv.chaos"
LOOPBACK_NAMES = "127.0.0.1 localhost\n::1 localhost\n"
OBEDIENT = "bdfh"
"""Nodes whose workers exit with 0 on SIGTERM, like programs that have saved."""
UNSUCCESSFUL = "fh"
"""Those of them whose workers exit with 1 instead, if no restart is left. Otherwise that is charged."""
SHELLS = {"c": '"$0" "$1"; exit $?', "g": 'trap : TERM; "$0" "$1"; exit $?'}
"""Shell scripts that start the workers of some nodes, in fleets with evictions. The second one outlives SIGTERM. Both
exit as their program does, with 143 if SIGTERM has ended it."""
LISTENING = "bceh"
"""Nodes whose workers listen to notices."""
OUTLIVING = "abef"
"""Nodes whose supervisors outlive their killed agents. Those of the others are killed, and their agents too."""
SIDE = "side"
"""Id of the short runs in parallel with the long one."""

UNHEARD = "could not tell rdzv-server"

RESTARTS, EVICTED = "restarts left", "evictions"
"""Parts of a fleet that no action names: restarts that may be charged, and workers that end in their own way."""

View = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How the run is set up."""

    etcd: bool = False
    """Whether the state is in etcd, instead of a file on the disk that can be full or slow."""
    tls: bool = False
    """Whether there are TLS, and tokens for agents and for operators."""
    proxy: Literal["", "nginx", "haproxy"] = ""
    """Proxy through which the agents reach the server, empty for none."""
    names: bool = False
    """Whether the agents know the server by a name."""
    survivors: bool = False
    """Whether workers that survive a round save its last step."""
    supervised: bool = False
    """Whether each agent has a supervisor, which exits with the run's exit code (`--exit-with-run`)."""
    notices: bool = False
    """Whether the agents give their workers notice before they leave."""
    no_restarts: bool = False
    """Whether the run has no restart to lose (`--max-restarts 0`). Then no worker may fail."""
    servers: int = 1
    """Number of servers, at ports of one host. Several share the etcd, and one of them leads."""

    def __post_init__(self) -> None:
        if self.servers > 1 and not (self.etcd and self.tls):
            raise ValueError(
                "several servers need etcd, and tokens: without these only the leader's own machine may act"
            )
        if self.tls and self.proxy:
            raise ValueError("the proxies here do not end TLS: choose one of them")

    @property
    def flags(self) -> str:
        """Flags of `python -m tests.chaos` for this setting."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: value for name, value in given.items() if value != getattr(Setting(), name)}
        flags = ((f"--{name.replace('_', '-')}", value) for name, value in changed.items())
        return "".join(f" {flag}" if value is True else f" {flag} {value}" for flag, value in flags)

    @property
    def has_evictions(self) -> bool:
        """Whether the workers of each node end in their own way when they get SIGTERM."""
        return self.notices or self.no_restarts

    @property
    def parts(self) -> list[str]:
        """Parts that the fleet has: see `plan`."""
        has = {"disk": not self.etcd, "etcd": self.etcd, "proxy": bool(self.proxy), "names": self.names}
        has |= {RESTARTS: not self.no_restarts, EVICTED: self.has_evictions}
        return [part for part, is_there in has.items() if is_there]

    def agent_flags(self, name: str) -> Iterator[str]:
        """Yield flags of the agent of this node, the command of its workers last."""
        yield from ("--max-restarts", "0" if self.no_restarts else "100000")
        if self.notices:
            yield from ("--notice-timeout", f"{NOTICE_TIMEOUT_S:g}")
        if self.supervised:
            yield "--exit-with-run"
        if self.has_evictions and name in SHELLS:
            yield from ("--no-python", "bash", "-c", SHELLS[name], sys.executable)
        else:
            yield from ("--preload", ",".join([*WARM, *self._further_modules(name)]))

    def _further_modules(self, name: str) -> Iterator[str]:
        if self.notices and name in LISTENING:
            yield "node_agent.in_worker"
        if self.survivors:
            yield "node_agent.survivors"

    def worker_variables(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield environment variables that tell the workers of this node how to behave."""
        if name in OBEDIENT:
            yield "TEST_EXIT_ON_SIGTERM", str(int(self.no_restarts and name in UNSUCCESSFUL))
        if self.notices and name in LISTENING:
            yield "TEST_LISTENS", "1"


class Fleet(Hosts):
    """Agents by their nodes' names. `up`: the nodes that should be in the run."""

    nproc = 2

    def __init__(self, hub: WorkerHub, network: Network, folder: Path, disk: Disk, setting: Setting) -> None:
        super().__init__(hub, network, folder / "training")
        self.setting = setting
        self._folder = folder
        self._etcd: Program | None = None
        self._proxy: Program | None = None
        self._leader: ServerOnHost
        self._replicas: dict[int, ServerOnHost] = {}
        """The newest server of each port."""
        self._stopped: set[ServerOnHost] = set()
        self._store_flags: tuple[str, ...] = ("--store", f"sqlite:{disk.path}/state.db")
        self._tls_flags: tuple[str, ...] = ()
        self._agent_flags: tuple[str, ...] = ()
        self._operator_flags: tuple[str, ...] = ()
        self._tls: ssl.SSLContext | None = None
        self.disk = disk
        self.temporary = folder / "tmp"
        self.up: set[str] = set()
        self.supervisors: list[Program] = []
        """Supervisors of killed agents."""
        self.cordoned: set[str] = set()
        """Nodes whose agents stand by, because the nodes are cordoned."""
        self.crew: list[Worker] = []
        """Workers, by rank, of the round that was last seen working."""
        self._mark = str(folder)
        self._actions = 0
        """Number of operators' actions."""
        self.training.path.mkdir()
        self.temporary.mkdir()

    @property
    def endpoint(self) -> str:
        entrance = self.network[PROXY if self.setting.proxy else SERVER]
        ports = self._ports
        return ",".join(f"{NAME}:{port}" if self.setting.names else entrance.authority(port) for port in ports)

    # Nodes.

    async def start_agent(self, name: str) -> None:
        await self.node(name, *FLAGS, *self._agent_flags, *self.setting.agent_flags(name))
        self.up.add(name)

    def agent_pid(self, name: str) -> int:
        """Return the pid of the node's agent; its supervisor's if that has not started the agent yet."""
        pid = self.agents[name].pid
        with suppress(FileNotFoundError):  # the supervisor has just ended
            return next(iter(children(pid)), pid) if self.setting.supervised else pid
        return pid

    async def kill_agents(self, *names: str) -> None:
        """Kill these agents at once."""
        pids = {name: self.agent_pid(name) if name in OUTLIVING else self.agents[name].pid for name in names}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for name, pid in pids.items():
            program = self.agents.pop(name)
            if program.pid == pid:
                await program.exit_code()
            else:
                self.supervisors.append(program)
                await until(partial(lambda gone: not is_running(gone), pid), PATIENCE_S)
            self.up.discard(name)

    async def dismiss_agents(self, *names: str, with_children: bool = False) -> list[str]:
        """Send SIGTERM, so that they leave the run. Return those that could not tell the server.

        `with_children`: whether to signal all of their processes at the same time.
        """
        pids = {name: self._pids_of(name) if with_children else [self.agents[name].pid] for name in names}
        for pid in chain(*pids.values()):
            _terminate(pid)
        return await self._dismissed({name: self.agents.pop(name) for name in names})

    async def end_every_process(
        self, names: Sequence[str], chance: random.Random, within_s: float, first_s: float = 0.0
    ) -> list[str]:  # fmt: skip
        """Send SIGTERM to each process of the nodes, in a random order. Return the agents that could not tell the
        server.

        `first_s`: seconds by which the agents get it before; 0 for any order.
        """

        async def end(pids: list[int]) -> None:
            for pid in pids:
                _terminate(pid)
                await asyncio.sleep(within_s / len(pids))  # the time between two signals is the fault

        orders = [chance.sample(pids, len(pids)) for pids in map(self._pids_of, names)]
        if first_s:
            for name in names:
                _terminate(self.agents[name].pid)
            await asyncio.sleep(first_s)  # the time between two signals is the fault
            agents = {pid for name in names for pid in (self.agents[name].pid, self.agent_pid(name))}
            orders = [[pid for pid in order if pid not in agents] for order in orders]
        await asyncio.gather(*map(end, orders))
        return await self._dismissed({name: self.agents.pop(name) for name in names})

    def _pids_of(self, name: str) -> list[int]:
        """Return the pids of the node's agent, its supervisor, its children and their children, the agent's own or its
        supervisor's first.
        """
        pids = dict.fromkeys([self.agents[name].pid, self.agent_pid(name)])
        own = children(self.agent_pid(name))
        return [*pids, *own, *chain(*map(children, own))]

    async def _dismissed(self, agents: Mapping[str, Program]) -> list[str]:
        """Return when these agents have left the run. Return those that could not tell the server."""
        for agent in agents.values():
            assert await agent.exit_code() == ExitCode.START_AGAIN, agent.err
        self.up.difference_update(agents)
        return [name for name, agent in agents.items() if UNHEARD in "\n".join(agent.err)]

    async def is_drained(self, name: str) -> None:
        """Return when this node's agent has left the run because the node is drained."""
        await self._dismissed({name: self.agents.pop(name)})

    def lose_names(self) -> None:
        for name in NODES:
            self.network[name].lose_names()

    def find_names(self) -> None:
        address = self.network[PROXY if self.setting.proxy else SERVER].address
        for name in NODES:
            self.network[name].namespace.replace_file("hosts", f"{LOOPBACK_NAMES}{address} {NAME}\n")

    async def side_run(self, name: str) -> None:
        """Run a short program as a separate run on this node. Return when it has succeeded."""
        flags = ("--endpoint", self.endpoint, "--node-id", f"{SIDE}-{name}", "--run-id", SIDE, "--nnodes", "1")
        command = (sys.executable, "-m", "node_agent", *flags, *self._agent_flags, "--no-python", "true")
        agent = await self.network[name].start(Program, *command, env=self._environment(name))
        assert await agent.exit_code(PATIENCE_S) == 0, agent.err

    async def forget_side_run(self) -> None:
        """Ask the server to forget the short runs. It may refuse, be down, or have forgotten them."""
        await self._operate("forget", SIDE)

    async def operate(self, *action: str) -> bool:
        """Carry out an operator's action, once: the request is sent until it is answered, with one idempotency key.

        Return whether it has changed something.
        """
        self._actions += 1
        give_up_at = time.monotonic() + PATIENCE_S
        while (code := await self._operate(*action, "--request-id", f"action-{self._actions}")) == ExitCode.START_AGAIN:
            assert time.monotonic() < give_up_at, f"rdzvctl {' '.join(action)}: {code}"
        assert code in (0, 1), f"rdzvctl {' '.join(action)}: {code}"
        return code == 0

    async def _operate(self, *action: str) -> int:
        """Run rdzvctl on the server's host, which neither a proxy nor a lost name separates from the server."""
        endpoint = ",".join(f"localhost:{port}" for port in self._ports)
        command = (sys.executable, "-m", "rdzvctl", "--endpoint", endpoint, *self._operator_flags)
        return await (await self.network[SERVER].start(Program, *command, *action)).exit_code(PATIENCE_S)

    async def start_stranger(self, way: str) -> Program:
        """Start a program that attacks the server's port in this way until it is ended."""
        address = self.network[SERVER].address
        command = (sys.executable, stranger.__file__, address, str(DEFAULT_PORT), way)
        return await self.network[STRANGER].start(Program, *command)

    def workers_of(self, name: str) -> list[Worker]:
        return [worker for worker in self.crew if worker.env["TEST_HOST"] == name]

    async def fresh_worker(self, name: str) -> int:
        """Return the pid of a worker on this node that has not met the others yet, once there is one."""
        known = {worker.pid for worker in self.crew}  # a pid of an earlier round may be reused
        fresh: set[int] = set()

        def has_come() -> bool:
            fresh.update(traces.workers(self.agent_pid(name), self.script) - known)
            return bool(fresh)

        await until(has_come, PATIENCE_S)
        return fresh.pop()

    # The server.

    @property
    def server(self) -> ServerOnHost:
        """The server; of several, the one that was last seen to lead."""
        return self._leader

    @property
    def _ports(self) -> range:
        return range(DEFAULT_PORT, DEFAULT_PORT + self.setting.servers)

    @property
    def _unserved(self) -> list[int]:
        """Ports whose servers are not running."""
        return [port for port in self._ports if port not in self._replicas or not self._replicas[port].is_running]

    def _server_flags(self, port: int) -> tuple[str, ...]:
        advertised = ("--advertise", self.network[SERVER].authority(port)) if self.setting.etcd else ()
        return self._store_flags + self._tls_flags + advertised

    async def start_server(self) -> None:
        """Start each server that is not running."""
        for port in self._unserved:
            server = self._replicas[port] = await self.serve(*self._server_flags(port), port=port)
            if self._tls:
                server.tls, server.token = self._tls, TOKENS["readers"]
            if self.setting.servers == 1 or port == DEFAULT_PORT:
                self._leader = server

    async def start_server_for(self, seconds: float) -> None:
        """Start a server that is killed soon, perhaps during its start."""
        port = self._unserved[0]
        command = (sys.executable, "-m", "rdzv_server", "--port", str(port), *self._server_flags(port))
        server = await self.network[SERVER].start(Program, *command)
        await asyncio.sleep(seconds)  # where in its start it dies is the fault
        await server.end()

    def stop_server(self) -> ServerOnHost:
        """Stop the server with SIGSTOP. Return it."""
        self.server.signal(signal.SIGSTOP)
        self._stopped.add(self.server)
        return self.server

    def wake_server(self, stopped: ServerOnHost) -> None:
        stopped.signal(signal.SIGCONT)
        self._stopped.discard(stopped)

    async def start_etcd(self) -> None:
        """Start one etcd member beside the server. Its data outlives it."""
        url, peer = f"http://{ETCD}", "http://127.0.0.1:2380"
        command = (
            *("etcd", "--data-dir", str(self._folder / "etcd"), "--log-level", "error"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )
        environment = {"ETCD_UNSUPPORTED_ARCH": {"aarch64": "arm64"}.get(os.uname().machine, "")}
        self._etcd = await self.network[SERVER].start(Program, *command, env=environment)
        self._store_flags = ("--store", f"etcd://{ETCD}/chaos", "--leader-lease", "2")

    async def kill_etcd(self) -> None:
        assert self._etcd
        await self._etcd.kill()

    async def start_proxy(self) -> None:
        assert self.setting.proxy
        configuration = _CONFIGURATIONS[self.setting.proxy](self.network[SERVER].authority(DEFAULT_PORT))
        command = proxies.command(self.setting.proxy, self._folder, configuration)
        self._proxy = await self.network[PROXY].start(Program, *command)

    async def kill_proxy(self) -> None:
        assert self._proxy
        await self._proxy.kill()

    def use_tls(self) -> None:
        authority = Authority(self._folder)
        shown = authority.issue("server", self.network[SERVER].address, NAME, "localhost")
        files = {name: self._folder / name for name in TOKENS}
        for name, token in TOKENS.items():
            files[name].write_text(f"{token}\n")
            files[name].chmod(0o600)
        agents, readers, operators = map(str, files.values())
        self._tls_flags = ("--tls-cert", shown.cert, "--tls-key", shown.key, "--token-file", agents)
        self._tls_flags += ("--read-token-file", readers, "--admin-token-file", operators)
        self._agent_flags = ("--tls-ca", authority.ca, "--token-file", agents)
        self._operator_flags = ("--tls-ca", authority.ca, "--token-file", operators)
        self._tls = ssl.create_default_context(cafile=authority.ca)

    async def kill_server(self) -> None:
        await self.server.kill()

    async def end_server(self) -> None:
        """Send SIGTERM to the server."""
        self.server.signal(signal.SIGTERM)
        assert await self.server.exit_code() == 0, self.server.err

    async def end_servers(self) -> None:
        """Send SIGTERM to all servers."""
        for server in self._replicas.values():
            server.signal(signal.SIGTERM)
        for server in self._replicas.values():
            assert await server.exit_code() == 0, server.err

    # The whole.

    async def begin(self) -> None:
        if self.setting.etcd:
            await self.start_etcd()
        if self.setting.tls:
            self.use_tls()
        if self.setting.names:
            self.lose_names()  # makes the files that programs inside read from then on
            self.find_names()
        if self.setting.proxy:
            await self.start_proxy()
        await self.start_server()
        for name in NODES:
            await self.start_agent(name)
        await self.agents[NODES[0]].line("waiting for|standing by|round 1")

    async def works(self) -> View:
        """Return the run, once exactly the nodes in `up` are in it, in touch with the server, and train together."""
        since = time.monotonic()
        view = await self._until(lambda view: self._why_not(view, since))
        await self.crew[0].tell("steps 3")
        return view

    async def stops(self, name: str) -> None:
        """Return when the next round waits only for this node to stop its workers."""
        await self._sees(f"{name} to stop", lambda view: (view["missing"] or {}).get("stopping") == [name])

    async def waits(self, name: str) -> None:
        """Return when this node's agent was told to wait until others have stopped their workers, and is its node's
        only one.

        Otherwise a dead agent that the server still believes in would get a place in the round.
        """
        await self.agents[name].line("waiting for .* to stop the workers")
        await self._sees(
            f"one agent of {name}", lambda view: [node["node_id"] for node in view["nodes"]].count(name) == 1
        )

    async def misses(self, name: str) -> None:
        """Return when the server does not expect this node any more, at the latest when its lease has ended.

        A round that the node has joined would otherwise begin with it.
        """
        await self._sees(f"{name} to be missed", lambda view: name not in {node["node_id"] for node in view["nodes"]})

    async def takes_part(self, name: str) -> None:
        """Return when this node's agent has a place in a round."""
        await self.agents[name].line(r"round \d+: node \d+ of")

    async def has_restarted(self, number: int) -> None:
        """Return when the run has had this number of restarts."""
        await self._sees(f"restart {number}", lambda view: sum(view["restarts"].values()) >= number)

    async def unheard(self) -> None:
        """Return when the server has noticed that it does not hear any agent."""
        await self._sees("no agent to be heard", lambda view: view["unheard_s"] is not None)

    async def round(self) -> int:
        """Return the number of the run's round."""
        return int((await self.view())["round"])

    async def in_trouble_or_after(self, round_: int) -> None:
        """Return when the server cannot write, or has begun a later round, for which its file may have room."""
        await self._sees(
            "an outage or a round", lambda view: view["server"]["unhealthy_reason"] or view["round"] > round_
        )

    async def finish_work(self) -> None:
        """Return when the workers have ended their training together."""
        for worker in self.crew:
            worker.order_exit(0)
        for worker in self.crew:
            await worker.gone()

    async def ends(self, code: int) -> None:
        """Return when every agent has ended with this exit code, which is that of the run."""
        programs = self.agents | {f"supervisor {n}": each for n, each in enumerate(self.supervisors, start=1)}
        codes = {name: await program.exit_code(PATIENCE_S) for name, program in programs.items()}
        assert set(codes.values()) == {code}, f"exit codes: {codes}"

    async def leaves_nothing(self) -> None:
        """Return when nothing is left of the run, whose server has ended."""
        await self._end_parts()
        give_up_at = time.monotonic() + PATIENCE_S
        while left := [*traces.of(self._mark, self.network), *self._files()]:
            assert time.monotonic() < give_up_at, f"left behind: {', '.join(left)}"
            await asyncio.sleep(CHECK_INTERVAL_S)  # forgotten processes report nothing

    def _files(self) -> list[str]:
        state = (path for path in self.disk.path.iterdir() if path.name not in STATE_FILES)
        return list(map(str, [*self.temporary.rglob("*"), *state]))

    async def end(self) -> None:
        for name in [name for name, agent in self.agents.items() if agent.is_running]:
            os.kill(self.agent_pid(name), signal.SIGCONT)
        for server in self.servers:
            if server.is_running:
                server.signal(signal.SIGCONT)
        for worker in self.hub.all:
            if is_running(worker.pid):
                os.kill(worker.pid, signal.SIGCONT)
        await super().end()
        for supervisor in self.supervisors:
            await supervisor.end()
        await self._end_parts()

    async def _end_parts(self) -> None:
        for part in (self._etcd, self._proxy):
            if part:
                await part.end()

    def _environment(self, name: str) -> dict[str, str]:
        own = {traces.MARK: self._mark, "TMPDIR": str(self.temporary), "TEST_STEP_S": f"{STEP_S:g}"}
        own |= dict(self.setting.worker_variables(name))
        own |= {"TEST_SURVIVORS": str(self.training.path / "survivors")} if self.setting.survivors else {}
        return {**super()._environment(name), **own, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}

    async def blamed(self, name: str, since: float) -> list[str]:
        """Return why this node was blamed for failures of its workers since this time of day."""
        costs = json.loads(await self.server.get(f"{NODE_COSTS}?node_id={name}"))
        return [each["reason"] for each in costs["incidents"] if each["at"] >= since and each["fault"] != "lost"]

    async def _sees(self, wanted: str, met: Callable[[View], object]) -> None:
        await self._until(lambda view: "" if met(view) else f"waiting for {wanted}")

    async def _until(self, why_not: Callable[[View], str]) -> View:
        """Return the run, once `why_not` returns no reason. Fail with the last reason."""
        give_up_at, why = time.monotonic() + PATIENCE_S, "the server does not answer"
        while time.monotonic() < give_up_at:
            with suppress(OSError, HTTPException):  # the server may be down
                view = await self.view()
                if not (why := why_not(view)):
                    return view
            await asyncio.sleep(CHECK_INTERVAL_S)  # as an operator looks, also while the server is down
        raise AssertionError(f"after {PATIENCE_S:g} s still: {why}")

    async def view(self) -> View:
        """Return the run as operators see it, with the state of the server that leads."""
        status: View = {"runs": []}
        for server in self._replicas.values():
            if server.is_running and server not in self._stopped and not status["runs"]:
                with suppress(OSError, HTTPException):  # it may be about to end or to start
                    status = json.loads(await server.get("/v1/status"))
                    self._leader = server if status["runs"] else self._leader
        runs = [run for run in status["runs"] if run["run_id"] != SIDE]
        if not runs:
            raise ConnectionError("no server leads")
        assert len(runs) == 1, "one run, in its first attempt"
        return {**runs[0], "server": status["server"]}

    def _why_not(self, view: View, since: float) -> str:
        states = {(node["node_id"], node["state"]) for node in view["nodes"]}
        if states != {(name, "running") for name in self.up} | {(name, "cordoned") for name in self.cordoned}:
            return f"{view['phase']}: {view['reason']}; nodes: {sorted(states)}"
        if silent := [node["node_id"] for node in view["nodes"] if node["lease_age_s"] > time.monotonic() - since]:
            return f"not heard of: {', '.join(silent)}"
        self.crew = self._newest_crew()
        if (ranks := [worker.rank for worker in self.crew]) != list(range(self.nproc * len(self.up))):
            return f"only these ranks have met: {ranks}"
        return ""

    def _newest_crew(self) -> list[Worker]:
        """Return the present workers of the round that reported last."""
        self.hub.forget_the_gone()
        newest = _meeting_place(self.hub.all[-1]) if self.hub.all else ""
        crew = [each for each in self.hub.all if _meeting_place(each) == newest]
        return sorted(crew, key=lambda worker: worker.rank)


@asynccontextmanager
async def fleet(folder: Path, setting: Setting) -> AsyncIterator[Fleet]:
    """Yield a working fleet, and leave nothing behind."""
    with Disk(folder / "disk") as disk:
        async with Network(SERVER + NODES + PROXY + STRANGER) as network, WorkerHub(folder / "hub") as hub:
            fleet = Fleet(hub, network, folder, disk, setting)
            try:
                await fleet.begin()
                yield fleet
            except BaseException:
                fleet_story(fleet)
                raise
            finally:
                await fleet.end()


def fleet_story(fleet: Fleet) -> None:
    """Print the last output of all programs, for a person who examines a failure."""
    programs: dict[str, Program] = {f"server {n}": server for n, server in enumerate(fleet.servers, start=1)}
    for name, program in (programs | {f"agent {name}": agent for name, agent in sorted(fleet.agents.items())}).items():
        print(*(f"{name}: {line}" for line in program.err[-30:]), sep="\n", file=sys.stderr)


def _terminate(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def _meeting_place(worker: Worker) -> str:
    return f"{worker.env['MASTER_ADDR']}:{worker.env['MASTER_PORT']}"
