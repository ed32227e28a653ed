"""The hot paths: the codec, a join, a poll, the assignment of many nodes."""

import asyncio
import ctypes
import gc
import mmap
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from msgspec.structs import replace
from rdzv_protocol import codec, messages
from rdzv_protocol.messages import Assignment, JoinRequest, PollRequest, Reply, ReportRequest, Start, Stop, Wait
from rdzv_protocol.settings import RequestedSettings

from rdzv_server.core.events import LeaseRenewed, NodeJoined, WorkersFailed
from rdzv_server.core.kernel.run import Agent, AgentState
from rdzv_server.core.policies.hangs.suspicions import HangSuspected
from rdzv_server.core.runs.registry import Registry
from rdzv_server.service.driver import Driver
from rdzv_server.service.rendezvous import Rendezvous
from rdzv_server.storage.base import MemoryStore

Work = Callable[[int], None]
"""Do something this many times."""

RUN_ID, SERVER_ADDR = "7f0c55e2-train", "10.0.0.1"
MANY, SOME, FEW = 10_000, 5_600, 1_000
"""Numbers of nodes. With `SOME`, a dict that grew to this size keeps the places of nearly as many removed keys before
it is rebuilt."""
NEVER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class HotPath:
    """A hot path. `prepare` returns the work, which runs `times` times to warm up, and as often again while it is
    counted.
    """

    name: str
    prepare: Callable[[], Work]
    times: int = 100
    """Number of repetitions. With 1 the work cannot be repeated, and is not warmed up."""


CALIBRATION = "calibration"


def _plain_python() -> Work:
    """Return work of the same kind as ours."""
    table = {f"key-{number}": number for number in range(16)}

    def work(times: int) -> None:
        for _ in range(times):
            plain = [(name, value, f"{name}={value}") for name, value in table.items() if type(value) is int]
            assert {name: _Pair(name, value).total() for name, value, _ in plain}

    return work


class _Pair:
    __slots__ = ("name", "value")

    def __init__(self, name: str, value: int) -> None:
        self.name = name
        self.value = value

    def total(self) -> int:
        return len(self.name) + self.value


# The codec: what every node sends and receives.


def _failure() -> messages.Failure:
    line = 'File "/home/user/train.py", line 42, in step'
    return messages.Failure(
        node_id="node-0017",
        rank=137,
        local_rank=1,
        pid=4_711,
        exit_code=1,
        cause="exit code 1",
        error="RuntimeError: CUDA error: an illegal memory access was encountered",
        traceback=(line,) * 8,
        stderr_tail=(line,) * 16,
        failed_at=1_750_000_000.0,
    )


def _reply(directive: messages.Directive) -> Reply:
    return Reply(epoch="0123456789abcdef", revision=20_017, lease_s=10.0, directive=directive)


def _messages() -> dict[str, Any]:
    waits = "waiting for 3 more nodes: 9997 of 10000 joined (node-0000, node-0001, node-0002); gives up in 583 s"
    assignment = Assignment(
        round=3,
        group_rank=17,
        group_world_size=MANY,
        first_rank=136,
        local_world_size=8,
        world_size=8 * MANY,
        first_role_rank=136,
        role_world_size=8 * MANY,
        master_addr="10.0.0.7",
        master_port=29_500,
        restart_count=2,
        max_restarts=3,
    )
    of = {"run_id": RUN_ID, "agent_id": "agent-0017"}
    return {
        "JoinRequest": _joins(18)[17],
        "PollRequest": PollRequest(**of, revision=20_017),
        "ReportRequest": ReportRequest(**of, round=3, failure=_failure()),
        "Reply of Wait": _reply(Wait(reason=waits)),
        "Reply of Start": _reply(Start(assignment=assignment, reason=f"all {MANY} nodes joined")),
        "Reply of Stop": _reply(Stop(round=3, reason="worker rank 137 on node node-0017 failed: exit code 1")),
    }


def _encoding(message: Any) -> Work:
    return _repeating(lambda: codec.encode(message))


def _decoding(message: Any) -> Work:
    kind, body = type(message), codec.encode(message)
    return _repeating(lambda: codec.decode(kind, body))


def _repeating(step: Callable[[], object]) -> Work:
    def work(times: int) -> None:
        for _ in range(times):
            step()

    return work


# The core: one run of many nodes.


def _joins(nodes: int, fixed_nodes: int | None = None) -> list[JoinRequest]:
    """Return the joins of all nodes of a run."""
    settings = RequestedSettings(min_nodes=nodes, max_nodes=nodes, lease_s=NEVER_S, fixed_nodes=fixed_nodes)
    return [_join(number, settings) for number in range(nodes)]


def _join(number: int, settings: RequestedSettings) -> JoinRequest:
    return JoinRequest(
        run_id=RUN_ID,
        agent_id=f"agent-{number:04}",
        node_id=f"node-{number:04}",
        after_round=0,
        addr=f"10.1.{number // 256}.{number % 256}",
        port=29_500,
        local_world_size=8,
        settings=settings,
        hosts_store=True,
    )


def _registry(joined: int, nodes: int = MANY, fixed_nodes: int | None = None) -> tuple[Registry, Callable[[], None]]:
    """Return a registry with a run of `nodes`, of which `joined` have joined, and a function that lets the next one
    join.
    """
    registry, requests = Registry(retention_s=3_600.0), _joins(nodes, fixed_nodes)
    registry.handle(RUN_ID, NodeJoined(requests[0], SERVER_ADDR), 1.0)
    (run,) = registry.runs()
    for request in requests[1:joined]:  # as if it had joined: a real join takes too long under valgrind
        run.move(Agent(request, SERVER_ADDR), AgentState.WAITING)
        run.leases.renew(request.agent_id, 1.0)
    coming = iter(requests[joined:])

    def join() -> None:
        request = next(coming)
        registry.handle(RUN_ID, NodeJoined(request, SERVER_ADDR), 1.0)

    return registry, join


def _core_join() -> Work:
    _, join = _registry(joined=16, nodes=1_000)
    return _repeating(join)


def _core_fixed_join() -> Work:
    """Join of one node of a run with fixed nodes: most are there, and one of them is unfit."""
    registry, join = _registry(joined=FEW, nodes=2 * FEW, fixed_nodes=2 * FEW)
    (run,) = registry.runs()
    run.unfit["node-none"] = "no GPU 3"
    return _repeating(join)


def _core_suspicion() -> Work:
    """Suspicion of one node of a run in which all nodes hang."""
    registry, join = _registry(joined=FEW - 1, nodes=FEW)
    join()
    (run,) = registry.runs()
    suspected = (HangSuspected(agent_id, 1, "progress", "no step", (8 * at,)) for at, agent_id in enumerate(run.seats))

    def suspect() -> None:
        registry.handle(RUN_ID, next(suspected), 2.0)

    for _ in range(FEW // 2):
        suspect()
    return _repeating(suspect)


def _core_poll() -> Work:
    """Poll of one node of many, most of which have polled shortly before."""
    registry, join = _registry(joined=SOME - 1, nodes=SOME)
    join()
    (run,) = registry.runs()
    for agent_id in list(run.agents)[:-FEW]:
        run.leases.renew(agent_id, 2.0)
    agent_id = f"agent-{SOME - 1:04}"

    def poll() -> None:
        registry.handle(RUN_ID, LeaseRenewed(agent_id), 3.0)
        registry.machine_of(RUN_ID, agent_id).directive_for(agent_id, 3.0)

    return _repeating(poll)


def _waiting_for_cause() -> tuple[Registry, Callable[[], None]]:
    """Return a registry with a run of many nodes whose workers have lost others, after the last restart, and a function
    that reports the failure of the next node. The run waits for the cause.
    """
    registry, join = _registry(joined=SOME - 1, nodes=SOME)
    join()
    (run,) = registry.runs()
    lost = replace(_failure(), consequence=True)
    failures = (
        WorkersFailed(agent_id, 1, replace(lost, node_id=run.agents[agent_id].node_id, rank=8 * at))
        for at, agent_id in enumerate(list(run.seats))
    )

    def fail() -> None:
        registry.handle(RUN_ID, next(failures), 2.0)

    fail()
    assert run.verdict_at is not None
    return registry, fail


def _core_failure() -> Work:
    _, fail = _waiting_for_cause()
    return _repeating(fail)


def _core_poll_before_verdict() -> Work:
    registry, _ = _waiting_for_cause()
    agent_id = f"agent-{SOME - 1:04}"
    return _repeating(lambda: registry.handle(RUN_ID, LeaseRenewed(agent_id), 2.5))


def _core_replacement() -> Work:
    """Join of a new agent on a node whose old one is gone, as are those of all nodes."""
    registry, _ = _registry(joined=FEW, nodes=FEW + 1)
    (run,) = registry.runs()
    for agent_id in run.agents:
        run.leases.disconnect(agent_id, 1.0)
    old = iter(_joins(FEW + 1))

    def join() -> None:
        request = next(old)
        request = replace(request, agent_id=f"{request.agent_id}-again")
        registry.handle(RUN_ID, NodeJoined(request, SERVER_ADDR), 1.0)

    return _repeating(join)


def _core_assignment() -> Work:
    """Join that completes the round of many nodes. It cannot be repeated."""
    _, join = _registry(joined=MANY - 1)
    return lambda times: join()


# Core and shell, without HTTP.


class _Connection:
    """A node's connection without data."""

    server_addr = SERVER_ADDR
    is_scoped = False
    is_closed = False

    def held(self, seconds: float) -> None:
        pass


class _Shell:
    """A server without its sockets."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._driver = Driver(Registry(retention_s=3_600.0), MemoryStore())
        self._rendezvous = Rendezvous(self._driver)
        self._loop.run_until_complete(self._driver.start())
        self._runs = count()

    def form(self, nodes: int) -> None:
        """Let this number of nodes, each on a separate connection, join a new run and be told to start."""
        run_id = f"run-{next(self._runs)}"
        self._loop.run_until_complete(self._form(run_id, nodes))

    async def _form(self, run_id: str, nodes: int) -> None:
        joins = [replace(join, run_id=run_id) for join in _joins(nodes)]
        replies = await asyncio.gather(*(self._rendezvous.ask(join, _Connection()) for join in joins))
        assert all(isinstance(reply.directive, Start) for reply in replies)

    def poll(self, times: int) -> None:
        """Let one agent, whose directive is a start, poll repeatedly."""
        self._loop.run_until_complete(self._poll(times))

    async def _poll(self, times: int) -> None:
        request = PollRequest(run_id="run-0", agent_id="agent-0003", revision=0)
        connection = _Connection()
        for _ in range(times):
            await self._rendezvous.ask(request, connection)


def _shell_join() -> Work:
    return _Shell().form


def _shell_poll() -> Work:
    shell = _Shell()
    shell.form(nodes=8)
    return shell.poll


def hot_paths() -> list[HotPath]:
    """Return the calibration, whose instructions are the unit of all others, and all paths with a recorded figure."""
    both_ways = [
        HotPath(f"{way} {name}", partial(prepare, message))
        for name, message in _messages().items()
        for way, prepare in (("encode", _encoding), ("decode", _decoding))
    ]
    return [
        HotPath(CALIBRATION, _plain_python, times=100),
        *both_ways,
        HotPath("core: a join", _core_join, times=200),
        HotPath("core: a join of a run with fixed nodes", _core_fixed_join, times=200),
        HotPath("core: a suspicion of a hang", _core_suspicion, times=200),
        HotPath("core: a poll", _core_poll, times=200),
        HotPath("core: a failure before the cause", _core_failure, times=200),
        HotPath("core: a poll before the cause", _core_poll_before_verdict, times=200),
        HotPath("core: a join in another's place", _core_replacement, times=200),
        HotPath("core and shell: a join", _shell_join, times=24),
        HotPath("core and shell: a poll", _shell_poll),
        HotPath(f"core: the assignment of {MANY:,} nodes", _core_assignment, times=1),
    ]


# valgrind.h: a request is an address in rax, a default answer in rdx, and five instructions without effect.
REQUEST = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db c3")
START_INSTRUMENTATION = (ord("C") << 24 | ord("T") << 16) + 4


def starts_late() -> bool:
    """Return whether this kind of machine can ask valgrind to start counting later, which is fifty times as fast."""
    return platform.machine() == "x86_64"


def start_counting() -> None:
    """Tell valgrind to count instructions from now on."""
    if not starts_late():
        return
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(REQUEST)
    arguments = (ctypes.c_uint64 * 6)(START_INSTRUMENTATION)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))(
        ctypes.addressof(arguments)
    )


def main() -> None:
    """Run every hot path under valgrind, and mark where each begins and ends.

    A mark is a call of the C library's `getppid`, which is used nowhere else here. At this call valgrind writes its
    count and resets it to zero.
    """
    gc.disable()
    paths = hot_paths()
    prepared = [(path, path.prepare()) for path in paths]
    start_counting()
    for path, work in prepared:
        if path.times > 1:
            work(path.times)
        os.getppid()
        work(path.times)
        os.getppid()


if __name__ == "__main__":
    main()
