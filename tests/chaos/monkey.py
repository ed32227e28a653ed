"""The monkey, and what it can do to a fleet. It enters deaths in its ledger.

A fault shorter than a lease is brief, and has no effect. The others last until the run has continued without the node.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from tests.chaos import stranger, traces
from tests.chaos.disk import SlowCalls
from tests.chaos.fleet import NODES, OUTLIVING, Fleet
from tests.chaos.ledger import Ledger
from tests.support.process_info import until

BRIEF_S = 0.8
"""Longest brief fault in seconds: a node was heard up to half a lease before, and TCP may pause as long again."""
WITHIN_S = (0.0, 0.005, 0.02, 0.2)
"""Seconds within which a scheduler sends its signals to all processes of a node."""
WAYS = ("both ways", "inwards", "outwards")


class Monkey:
    """Acts on a fleet. `random` makes the choices, and `log` is called with each action."""

    def __init__(self, fleet: Fleet, ledger: Ledger, random_: random.Random, log: Callable[[str], None]) -> None:
        self.fleet = fleet
        self.ledger = ledger
        self.random = random_
        self.log = log
        self._evicted: dict[str, float] = {}
        """Times of day at which nodes were evicted."""

    def nodes(self, number: int) -> list[str]:
        return self.random.sample(NODES, number)

    async def pause(self, least_s: float, most_s: float) -> None:
        """Let a fault last, or delay the next one, for a random time."""
        await asyncio.sleep(self.random.uniform(least_s, most_s))

    async def calm(self) -> None:
        """Return when the run works again, with the same ledger as the monkey."""
        view = await self.fleet.works()
        self.ledger.round_completes()
        if self.ledger.misses(view):  # the report is on its way, for instance over a network that loses frames
            await self.fleet.has_restarted(len(self.ledger.entries))
            view = await self.fleet.works()
        assert not (differences := self.ledger.differences(view)), "; ".join(differences)

    async def blames_no_evicted_node(self) -> None:
        """Check that no node is blamed for what its workers did when they got a signal."""
        for node, since in self._evicted.items():
            assert not (why := await self.fleet.blamed(node, since)), f"{node} is blamed: {'; '.join(why)}"

    # Helpers of workers and agents.

    def kill_helpers(self, kind: str, *nodes: str) -> None:
        pids = [pid for node in nodes for pid in traces.helpers(self.fleet.agent_pid(node), kind)]
        self.log(f"kill the {kind} of {', '.join(nodes)}: {pids}")
        for pid in pids:
            with suppress(ProcessLookupError):  # the fork server's helper, for example, ends by itself
                os.kill(pid, signal.SIGKILL)

    async def store_host(self) -> str:
        """Return the node with the store's helper: that of rank 0. A node that was it before may keep its helper.

        The helper has the round's listener. If it dies before it has the listener, another helper takes its place
        without a restart.
        """
        hosts: list[str] = []

        def has_helper() -> bool:
            for name in self.fleet.agents:
                for first in (worker for worker in self.fleet.workers_of(name) if worker.rank == 0):
                    port = int(first.env["MASTER_PORT"])
                    if any(
                        traces.serves(pid, port) for pid in traces.helpers(self.fleet.agent_pid(name), "store helper")
                    ):
                        hosts.append(name)
            return bool(hosts)

        await until(has_helper)
        return hosts[0]

    # Workers and agents.

    def kill_workers(self, *nodes: str) -> None:
        """Kill one worker on each of these nodes, all at once."""
        chosen = [self.random.choice(self.fleet.workers_of(node)) for node in nodes]
        self.log(f"kill rank {', '.join(str(worker.rank) for worker in chosen)} on {', '.join(nodes)}")
        for worker in chosen:
            with suppress(ProcessLookupError):  # its agent has noticed the previous one, and has ended it
                os.kill(worker.pid, signal.SIGKILL)
        self.ledger.worker_failed()

    async def kill_fresh_worker(self, node: str) -> None:
        """Kill a worker that has just been started."""
        pid = await self.fleet.fresh_worker(node)
        self.log(f"kill a fresh worker on {node}")
        os.kill(pid, signal.SIGKILL)

    async def kill_agents(self, *nodes: str) -> None:
        self.log(f"kill the agents of {', '.join(nodes)}")
        await self.fleet.kill_agents(*nodes)
        self.ledger.node_lost(*nodes)
        if len(nodes) == len(NODES):
            self.ledger.without_survivors += 1
            if self.fleet.setting.supervised:  # the server does not hear them, so their supervisors leave for them
                self.ledger.or_instead("node_left", *OUTLIVING)

    async def dismiss_agents(self, *nodes: str, with_children: bool = False) -> None:
        """Dismiss these agents. They tell the server, or report that they could not."""
        self.log(f"end {'every process' if with_children else 'the agents'} of {', '.join(nodes)}")
        unheard = await self.fleet.dismiss_agents(*nodes, with_children=with_children)
        self._left(nodes, unheard)

    def _left(self, nodes: Sequence[str], unheard: Sequence[str]) -> None:
        if heard := [node for node in nodes if node not in unheard]:
            self.ledger.node_left(*heard)
        if unheard:
            self.log(f"not answered by the server: {', '.join(unheard)}")
            self.ledger.node_unheard(*unheard)

    async def end_every_process(self, *nodes: str, within_s: float, first_s: float = 0.0) -> list[str]:
        """Send SIGTERM to each process of these nodes, on each node in its own order. Return the nodes whose agents
        could not tell the server.

        `first_s`: seconds by which the agents get it before.
        """
        order = f"{first_s:.1f} s after its agent" if first_s else "in any order"
        self.log(f"end every process of {', '.join(nodes)} {order}, within {1000 * within_s:g} ms")
        self._evicted |= dict.fromkeys(nodes, time.time())
        unheard = await self.fleet.end_every_process(nodes, self.random, within_s, first_s)
        self._left(nodes, unheard)
        return unheard

    async def start_agents(self, *nodes: str) -> None:
        """Start an agent on each node, as the cluster's scheduler does."""
        self.log(f"start agents on {', '.join(nodes)}")
        for node in nodes:
            await self.fleet.start_agent(node)

    async def return_one_by_one(self, *nodes: str) -> None:
        """Let the others continue without these nodes first."""
        await self.calm()
        for node in nodes:
            await self.start_agents(node)
            self.ledger.node_arrived(node)
            await self.calm()

    async def goes_on_without(self, node: str) -> None:
        """Return when the run has given the node up and works again."""
        self.fleet.up.discard(node)
        self.ledger.node_lost(node)
        await self.calm()

    async def is_back(self, node: str) -> None:
        """Let a node that was given up find out, and join again."""
        self.fleet.up.add(node)
        self.ledger.node_arrived(node)
        await self.calm()

    @asynccontextmanager
    async def agent_stopped(self, node: str) -> AsyncIterator[None]:
        agent = self.fleet.agent_pid(node)
        self.log(f"stop the agent of {node}")
        with suppress(ProcessLookupError):  # it was killed beside this
            os.kill(agent, signal.SIGSTOP)
        yield
        self.log(f"wake the agent of {node}")
        with suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(agent, signal.SIGCONT)

    @asynccontextmanager
    async def worker_held(self, node: str) -> AsyncIterator[None]:
        """Hold a worker that does not stop when told to, so that a round that forms must wait for it."""
        worker = self.random.choice(self.fleet.workers_of(node))
        self.log(f"hold rank {worker.rank} on {node}")
        os.kill(worker.pid, signal.SIGUSR1)
        yield
        self.log(f"let go of rank {worker.rank}")
        os.kill(worker.pid, signal.SIGUSR2)

    # Operators.

    async def operate(self, *action: str, may_be_idle: bool = False) -> None:
        """Carry out an operator's action. `may_be_idle`: whether there may be nothing to do."""
        self.log(f"an operator's action: {' '.join(action)}")
        has_changed = await self.fleet.operate(*action)
        assert has_changed or may_be_idle, f"nothing to do: {' '.join(action)}"

    # The network.

    @asynccontextmanager
    async def cut_off(self, host: str) -> AsyncIterator[None]:
        way = self.random.choice(WAYS)
        self.log(f"cut {host} off, {way}")
        for other in self.fleet.network.hosts:
            if way != "outwards":
                self.fleet.switch.cut(other, host)
            if way != "inwards":
                self.fleet.switch.cut(host, other)
        yield
        self.log("heal the network")
        self.fleet.switch.heal()

    @asynccontextmanager
    async def network_lossy(self) -> AsyncIterator[None]:
        self.log("lose three frames of ten")
        self.fleet.switch.lose_three_of_ten()
        yield
        self.log("heal the network")
        self.fleet.switch.heal()

    # The server and its disk.

    @asynccontextmanager
    async def server_down(self) -> AsyncIterator[None]:
        if self.random.random() < 0.7:
            self.log("kill the server")
            await self.fleet.kill_server()
        else:
            self.log("end the server")
            await self.fleet.end_server()
        yield
        for _ in range(self.random.choice((0, 0, 1, 3))):
            seconds = self.random.uniform(0.0, 0.6)
            self.log(f"start the server, and kill it after {seconds:.2f} s")
            await self.fleet.start_server_for(seconds)
        self.log("start the server")
        await self.fleet.start_server()

    @asynccontextmanager
    async def server_stopped(self) -> AsyncIterator[None]:
        self.log("stop the server")
        stopped = self.fleet.stop_server()
        yield
        self.log("wake the server")
        self.fleet.wake_server(stopped)

    @asynccontextmanager
    async def disk_full(self) -> AsyncIterator[None]:
        self.log("fill the disk")
        self.fleet.disk.fill()
        yield
        self.log("free the disk")
        self.fleet.disk.free()

    @asynccontextmanager
    async def disk_slow(self, least_s: float, most_s: float) -> AsyncIterator[None]:
        delay_s = self.random.uniform(least_s, most_s)
        self.log(f"slow the disk: {delay_s:.2f} s a sync")
        async with SlowCalls(self.fleet.server.pid, delay_s):
            yield
        self.log("the disk is fast again")

    # Parts that some fleets have.

    @asynccontextmanager
    async def etcd_down(self) -> AsyncIterator[None]:
        self.log("kill etcd")
        await self.fleet.kill_etcd()
        yield
        self.log("start etcd")
        await self.fleet.start_etcd()

    @asynccontextmanager
    async def proxy_down(self) -> AsyncIterator[None]:
        self.log("kill the proxy")
        await self.fleet.kill_proxy()
        yield
        self.log("start the proxy")
        await self.fleet.start_proxy()

    @asynccontextmanager
    async def names_lost(self) -> AsyncIterator[None]:
        """Make the name server silent, while no file has the names."""
        self.log("lose all names")
        self.fleet.lose_names()
        yield
        self.log("find the names again")
        self.fleet.find_names()

    # Strangers.

    @asynccontextmanager
    async def strangers(self) -> AsyncIterator[None]:
        """Let a caller without a token attack the server's port as hard as one process can."""
        way = self.random.choice(tuple(stranger.WAYS))
        self.log(f"strangers call: {way}")
        caller = await self.fleet.start_stranger(way)
        yield
        self.log("strangers are gone")
        await caller.end()

    async def side_run(self, node: str) -> None:
        """Run a short run on this node, under the common id of such runs."""
        self.log(f"a side run on {node}")
        await self.fleet.side_run(node)

    async def forget_side_run(self) -> None:
        await self.pause(0.0, 0.5)
        self.log("forget the side run")
        await self.fleet.forget_side_run()


Act = Callable[[Monkey], Awaitable[None]]
"""An action, or a fault that accompanies one."""
