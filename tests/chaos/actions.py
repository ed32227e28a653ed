"""Actions that may happen to workers, agents, their hosts, and the server with its disk.

After each action all nodes work again, and the restarts match the ledger. `action` lists the faults that may accompany
the action.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.faults import AGENT, HOST, NEWCOMER, STATE
from tests.chaos.fleet import LEASE_S, NODES, RUN
from tests.chaos.monkey import BRIEF_S, WITHIN_S, Act, Monkey
from tests.hosts.cluster import SERVER

OUTAGE_S = (6.0, 20.0)
"""Shortest and longest outage of etcd in seconds: about a lease, and several leases."""
RESTART_S = (2.0, 3.0)
"""Seconds that a proxy or a server takes to restart: above the grace of a closed connection, below a lease."""
ANY = AGENT + HOST + STATE


@dataclass(frozen=True)
class Action:
    """Action, and the faults that may accompany it. `charges`: whether a worker fails, so that a restart is charged."""

    act: Act
    faults: tuple[Act, ...]
    charges: bool = False

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")


ACTIONS: list[Action] = []
EVICTIONS: list[Action] = []
"""Actions in addition, for fleets with evictions."""


def action(faults: tuple[Act, ...], *, charges: bool = False, to: list[Action] = ACTIONS) -> Callable[[Act], Act]:
    def enter(act: Act) -> Act:
        to.append(Action(act, faults, charges))
        return act

    return enter


# Workers.


@action(ANY, charges=True)
async def a_worker_dies(m: Monkey) -> None:
    m.kill_workers(*m.nodes(1))


@action(ANY, charges=True)
async def workers_die_at_once(m: Monkey) -> None:
    m.kill_workers(*m.nodes(3))


@action(HOST + STATE, charges=True)
async def a_worker_dies_while_its_agent_is_stopped(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.agent_stopped(node):
        m.kill_workers(node)
        await m.pause(0.0, BRIEF_S)


@action(AGENT + STATE, charges=True)
async def a_worker_dies_while_its_host_is_cut_off(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        m.kill_workers(node)
        await m.pause(0.0, BRIEF_S)


@action(ANY, charges=True)
async def a_worker_dies_as_it_starts(m: Monkey) -> None:
    """A worker dies after another worker's death has opened the round, and before it has met its peers."""
    first, second = m.nodes(2)
    m.kill_workers(first)
    await m.kill_fresh_worker(second)
    m.ledger.round_completes()
    m.ledger.worker_failed()


# Agents.


@action(ANY)
async def an_agent_dies(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    await m.return_one_by_one(node)


@action(ANY)
async def agents_die_at_once(m: Monkey) -> None:
    nodes = m.nodes(m.random.randint(2, 3))
    await m.kill_agents(*nodes)
    await m.return_one_by_one(*nodes)


@action(HOST + STATE)
async def all_agents_die_at_once(m: Monkey) -> None:
    await m.kill_agents(*NODES)
    await m.pause(0.0, 2.0)
    await m.start_agents(*NODES)


@action(ANY)
async def an_agent_is_dismissed(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.dismiss_agents(node)
    await m.return_one_by_one(node)


@action(HOST + STATE)
async def all_agents_are_dismissed(m: Monkey) -> None:
    await m.dismiss_agents(*NODES)
    await m.pause(0.0, 2.0)
    await m.start_agents(*NODES)


@action(AGENT + HOST)
async def an_agent_is_dismissed_while_the_server_is_down(m: Monkey) -> None:
    """The agent leaves, and can report it only on its console."""
    (node,) = m.nodes(1)
    async with m.server_down():
        await m.dismiss_agents(node)
    await m.return_one_by_one(node)


@action(ANY)
async def an_agent_dies_as_its_workers_start(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    await m.calm()
    await m.start_agents(node)
    m.ledger.node_arrived(node)
    await m.fleet.fresh_worker(node)
    m.ledger.round_completes()
    await m.kill_agents(node)
    await m.return_one_by_one(node)


@action(NEWCOMER + STATE)
async def a_stopped_agent_is_replaced(m: Monkey) -> None:
    """The scheduler takes it for dead, starts another one, and then kills it."""
    (node,) = m.nodes(1)
    stopped = m.fleet.agents[node]
    m.log(f"stop the agent of {node}")
    os.kill(m.fleet.agent_pid(node), signal.SIGSTOP)
    await m.start_agents(node)
    m.ledger.node_lost(node)
    await m.fleet.takes_part(node)
    await m.calm()
    m.log(f"kill the agent of {node} that is stopped")
    await stopped.end()


@action(ANY, charges=True)
async def an_agent_dies_while_a_round_forms(m: Monkey) -> None:
    """An agent dies, and is replaced before the round is complete."""
    held, failing, dying = m.nodes(3)
    async with m.worker_held(held):
        m.kill_workers(failing)
        await m.fleet.stops(held)
        await m.kill_agents(dying)
        await m.pause(0.0, 1.5)
        await m.start_agents(dying)
        await m.fleet.waits(dying)


@action(ANY)
async def a_newcomer_dies_while_its_round_forms(m: Monkey) -> None:
    """The restart that was to admit it takes place, and admits its successor."""
    held, dying = m.nodes(2)
    await m.kill_agents(dying)
    await m.calm()
    async with m.worker_held(held):
        await m.start_agents(dying)
        m.ledger.node_arrived(dying)
        await m.fleet.waits(dying)
        await m.fleet.kill_agents(dying)
        await m.start_agents(dying)
        await m.fleet.waits(dying)


@action(HOST + STATE)
async def an_agent_dies_while_another_is_stopped(m: Monkey) -> None:
    stopped, dying = m.nodes(2)
    async with asyncio.TaskGroup() as both, m.agent_stopped(stopped):
        both.create_task(m.kill_agents(dying))  # on a busy machine, its processes may take seconds to end
        await m.pause(0.0, BRIEF_S)
    await m.return_one_by_one(dying)


@action(HOST + STATE)
async def an_agent_dies_while_another_is_stopped_for_long(m: Monkey) -> None:
    stopped, dying = m.nodes(2)
    async with m.agent_stopped(stopped):
        await m.kill_agents(dying)
        await m.goes_on_without(stopped)
    await m.is_back(stopped)
    await m.return_one_by_one(dying)


@action(HOST + STATE)
async def an_agent_is_stopped_for_long(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.agent_stopped(node):
        await m.goes_on_without(node)
    await m.is_back(node)


# Helpers of workers and agents, by themselves or at the same time.


@action(ANY, charges=True)
async def the_store_helper_dies(m: Monkey) -> None:
    """The round cannot continue without its store, so it restarts as after a worker's failure."""
    m.kill_helpers("store helper", await m.store_host())
    m.ledger.worker_failed()


@action(ANY, charges=True)
async def the_store_helper_dies_with_workers(m: Monkey) -> None:
    host = await m.store_host()
    m.kill_helpers("store helper", host)
    m.kill_workers(host, host)


@action(HOST + STATE, charges=True)
async def the_store_helper_dies_with_its_agent(m: Monkey) -> None:
    host = await m.store_host()
    m.kill_helpers("store helper", host)
    await m.kill_agents(host)
    await m.return_one_by_one(host)


@action(ANY)
async def guardians_die(m: Monkey) -> None:
    m.kill_helpers("guardian", *m.nodes(3))


@action(HOST + STATE)
async def an_agent_dies_with_its_guardian(m: Monkey) -> None:
    """The next agent that exits removes the temporary folder."""
    (node,) = m.nodes(1)
    m.kill_helpers("guardian", node)
    await m.kill_agents(node)
    await m.return_one_by_one(node)


@action(ANY)
async def warm_processes_die(m: Monkey) -> None:
    nodes = m.nodes(2)
    m.kill_helpers("warm processes", *nodes)
    m.kill_helpers("fork server", *nodes)


@action(ANY, charges=True)
async def a_worker_dies_with_what_was_to_replace_it(m: Monkey) -> None:
    (node,) = m.nodes(1)
    m.kill_helpers("warm processes", node)
    m.kill_helpers("fork server", node)
    m.kill_workers(node)


@action(HOST + STATE)
async def every_process_of_a_node_is_ended(m: Monkey) -> None:
    """SIGTERM to all of them at once, as Slurm and systemd do."""
    (node,) = m.nodes(1)
    await m.dismiss_agents(node, with_children=True)
    await m.return_one_by_one(node)


@action(HOST + STATE)
async def every_process_of_a_node_is_ended_in_any_order(m: Monkey) -> None:
    """Workers of some nodes then exit with 0, which is not a success."""
    (node,) = m.nodes(1)
    await m.end_every_process(node, within_s=m.random.choice(WITHIN_S))
    await m.return_one_by_one(node)


@action(HOST + STATE)
async def every_process_of_the_run_is_ended_in_any_order(m: Monkey) -> None:
    """They end so fast that no node sees another one's end before its own."""
    await m.end_every_process(*NODES, within_s=m.random.choice(WITHIN_S[:3]))
    await m.pause(0.0, 2.0)
    await m.start_agents(*NODES)


# Evictions, in fleets whose workers end in different ways.


@action(HOST + STATE, to=EVICTIONS)
async def several_nodes_are_evicted_at_once(m: Monkey) -> None:
    nodes = m.nodes(m.random.randint(2, 3))
    await m.end_every_process(*nodes, within_s=m.random.choice(WITHIN_S[:3]))
    await m.return_one_by_one(*nodes)


@action(HOST + STATE, to=EVICTIONS)
async def a_node_is_evicted_agent_first(m: Monkey) -> None:
    """With notices, the workers of all nodes may save meanwhile."""
    (node,) = m.nodes(1)
    await m.end_every_process(node, within_s=m.random.choice(WITHIN_S), first_s=m.random.uniform(0.01, 1.0))
    await m.return_one_by_one(node)


@action(HOST + STATE, to=EVICTIONS)
async def a_node_is_evicted_as_another_ones_agent_dies(m: Monkey) -> None:
    """Whichever the server sees first has its round, which does without both."""
    evicted, dying, held = m.nodes(3)
    async with m.worker_held(held):
        async with asyncio.TaskGroup() as both:
            both.create_task(m.end_every_process(evicted, within_s=m.random.choice(WITHIN_S)))
            await m.pause(0.0, 0.3)
            await m.fleet.kill_agents(dying)
            m.log(f"the agent of {dying} is killed")
        await m.fleet.misses(dying)
    m.ledger.left_or_lost(evicted, dying)
    await m.return_one_by_one(evicted, dying)


@action(HOST, to=EVICTIONS)
async def a_node_is_evicted_as_the_server_dies(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with asyncio.TaskGroup() as both:
        both.create_task(m.end_every_process(node, within_s=m.random.choice(WITHIN_S)))
        await m.pause(0.0, 0.6)
        async with m.server_down():
            await m.pause(0.0, 2.0)
    await m.return_one_by_one(node)


@action(HOST + STATE, to=EVICTIONS)
async def a_node_is_evicted_while_a_round_forms(m: Monkey) -> None:
    held, evicted, coming = m.nodes(3)
    await m.kill_agents(coming)
    await m.calm()
    async with m.worker_held(held):
        await m.start_agents(coming)
        m.ledger.node_arrived(coming)
        await m.fleet.waits(coming)
        await m.end_every_process(evicted, within_s=m.random.choice(WITHIN_S))
    await m.return_one_by_one(evicted)


@action(HOST + STATE, to=EVICTIONS)
async def a_node_is_evicted_while_another_is_drained(m: Monkey) -> None:
    drained, evicted, held = m.nodes(3)
    async with m.worker_held(held):
        m.ledger.node_drained(drained)
        await m.operate("drain", drained, "--deadline", "30s")
        await m.pause(0.0, 0.3)
        unheard = await m.end_every_process(evicted, within_s=m.random.choice(WITHIN_S))
        m.ledger.or_instead("node_left", evicted)
        if unheard:
            m.ledger.or_instead("node_lost", evicted)
        await m.fleet.is_drained(drained)
    await m.calm()
    await m.operate("uncordon", drained)
    await m.return_one_by_one(drained, evicted)


@action(HOST + STATE, charges=True, to=EVICTIONS)
async def a_node_is_evicted_as_a_worker_of_another_one_dies(m: Monkey) -> None:
    """The leave explains the failure: the server cannot tell which was first."""
    evicted, failing = m.nodes(2)
    async with asyncio.TaskGroup() as both:
        both.create_task(m.end_every_process(evicted, within_s=m.random.choice(WITHIN_S[:3])))
        m.kill_workers(failing)
    await m.return_one_by_one(evicted)


# Operators' actions.


@action(ANY)
async def an_operator_restarts_the_run(m: Monkey) -> None:
    m.ledger.run_restarted()
    await m.operate("restart", RUN)


@action(HOST + STATE, charges=True)
async def an_operator_restarts_the_run_as_a_worker_dies(m: Monkey) -> None:
    """Whichever comes first has its round; the other one needs none."""
    held, failing = m.nodes(2)
    async with m.worker_held(held):
        m.kill_workers(failing)
        m.ledger.worker_failed_or_run_restarted()
        await m.operate("restart", RUN, may_be_idle=True)


@action(AGENT + HOST)
async def an_operator_restarts_the_run_as_the_server_dies(m: Monkey) -> None:
    """The action is sent until it is answered, and is carried out once."""
    m.ledger.run_restarted()
    async with asyncio.TaskGroup() as both:
        both.create_task(m.operate("restart", RUN))
        await m.pause(0.0, 0.6)
        async with m.server_down():
            await m.pause(0.0, 1.0)


@action(ANY)
async def a_node_is_drained(m: Monkey) -> None:
    (node,) = m.nodes(1)
    m.ledger.node_drained(node)
    await m.operate("drain", node, "--deadline", "30s")
    await m.fleet.is_drained(node)
    await m.calm()
    await m.operate("uncordon", node)
    await m.return_one_by_one(node)


@action(HOST + STATE)
async def a_node_is_drained_while_another_ones_agent_dies(m: Monkey) -> None:
    """The round that follows from one of them also does without the other one."""
    drained, dying, held = m.nodes(3)
    async with m.worker_held(held):
        m.ledger.node_drained(drained)
        await m.operate("drain", drained, "--deadline", "30s")
        await m.kill_agents(dying)
        if m.fleet.setting.notices:  # the held worker cannot save, so its round is not over yet
            m.ledger.or_instead("node_lost", dying)
        await m.fleet.misses(dying)
        await m.fleet.is_drained(drained)
    await m.calm()
    await m.operate("uncordon", drained)
    await m.return_one_by_one(drained, dying)


@action(ANY, charges=True)
async def a_node_is_cordoned(m: Monkey) -> None:
    """Its workers continue, and the next round does without it."""
    cordoned, failing = m.nodes(2)
    await m.operate("cordon", cordoned)
    await m.calm()
    m.kill_workers(failing)
    m.fleet.up.discard(cordoned)
    m.fleet.cordoned.add(cordoned)
    await m.calm()
    m.ledger.node_arrived(cordoned)
    m.fleet.up.add(cordoned)
    m.fleet.cordoned.discard(cordoned)
    await m.operate("uncordon", cordoned)


# Hosts.


@action(AGENT + STATE)
async def a_host_is_cut_off_for_long(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        await m.goes_on_without(node)
    await m.is_back(node)


@action(AGENT + STATE, charges=True)
async def a_worker_dies_on_a_host_that_is_cut_off_for_long(m: Monkey) -> None:
    """The server does not hear of its death before it gives the host up, which explains the death."""
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        m.kill_workers(node)
        await m.goes_on_without(node)
    await m.is_back(node)


@action(AGENT + STATE)
async def the_server_is_cut_off_for_long(m: Monkey) -> None:
    """The server does not hear any agent, so it does not give up nodes, and nothing restarts."""
    async with m.cut_off(SERVER):
        await m.fleet.unheard()


# The server and its disk, by themselves or while something happens to a node.


@action(AGENT + HOST)
async def the_server_is_down(m: Monkey) -> None:
    async with m.server_down():
        await m.pause(0.0, LEASE_S + 1.0)


@action(AGENT + HOST)
async def the_server_is_stopped_for_long(m: Monkey) -> None:
    async with m.server_stopped():
        await m.pause(LEASE_S + 1.0, LEASE_S + 2.0)


@action(AGENT + HOST, charges=True)
async def a_worker_dies_while_the_server_is_down(m: Monkey) -> None:
    async with m.server_down():
        m.kill_workers(*m.nodes(1))
        await m.pause(0.0, 2.0)


@action(AGENT + HOST, charges=True)
async def the_server_dies_with_a_worker(m: Monkey) -> None:
    """The server dies while the failure is being reported, recorded and handled."""
    m.kill_workers(*m.nodes(1))
    await m.pause(0.0, m.random.choice((0.05, 0.6)))
    async with m.server_down():
        await m.pause(0.0, 1.0)


@action(AGENT + HOST)
async def the_server_dies_with_an_agent(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    await m.pause(0.0, m.random.choice((0.05, 0.6)))
    async with m.server_down():
        await m.pause(0.0, 1.0)
    await m.return_one_by_one(node)


@action(NEWCOMER)
async def an_agent_is_replaced_while_the_server_is_down(m: Monkey) -> None:
    """If another server leads meanwhile, the run may continue before the new agent joins: it returns after that."""
    (node,) = m.nodes(1)
    others_lead = m.fleet.setting.servers > 1
    async with m.server_down():
        await m.kill_agents(node)
        await m.pause(0.0, 1.0)
        if not others_lead:
            await m.start_agents(node)
            await m.pause(0.0, 1.0)
    if others_lead:
        await m.return_one_by_one(node)


@action(AGENT + HOST)
async def the_server_dies_while_the_disk_is_full(m: Monkey) -> None:
    async with m.disk_full():
        async with m.server_down():
            await m.pause(0.0, 1.0)
        await m.pause(0.0, BRIEF_S)


@action(AGENT + HOST, charges=True)
async def the_server_dies_while_a_round_forms(m: Monkey) -> None:
    held, failing = m.nodes(2)
    async with m.worker_held(held):
        m.kill_workers(failing)
        await m.fleet.stops(held)
        async with m.server_down():
            await m.pause(0.0, 1.0)


@action(AGENT + HOST, charges=True)
async def a_worker_dies_while_the_disk_is_full(m: Monkey) -> None:
    before = await m.fleet.round()
    async with m.disk_full():
        m.kill_workers(*m.nodes(1))
        await m.fleet.in_trouble_or_after(before)
        await m.pause(0.0, BRIEF_S)


@action(AGENT + HOST, charges=True)
async def a_worker_dies_while_the_disk_is_full_for_long(m: Monkey) -> None:
    before = await m.fleet.round()
    async with m.disk_full():
        m.kill_workers(*m.nodes(1))
        await m.fleet.in_trouble_or_after(before)
        await m.pause(LEASE_S + 1.0, LEASE_S + 2.0)


@action(AGENT + HOST, charges=True)
async def a_worker_dies_while_the_disk_hangs(m: Monkey) -> None:
    async with m.disk_slow(LEASE_S + 1.0, LEASE_S + 1.0):
        m.kill_workers(*m.nodes(1))
        await m.pause(LEASE_S + 2.0, LEASE_S + 2.0)


@action(AGENT + HOST, charges=True)
async def a_worker_dies_while_the_disk_is_slow(m: Monkey) -> None:
    async with m.disk_slow(0.1, 0.5):
        m.kill_workers(*m.nodes(1))
        await m.calm()


@action(AGENT + HOST)
async def an_agent_dies_while_the_disk_is_slow(m: Monkey) -> None:
    async with m.disk_slow(0.1, 0.5):
        await an_agent_dies(m)


@action(HOST)
async def an_agent_is_stopped_for_long_while_the_disk_is_slow_for_long(m: Monkey) -> None:
    """A silent node is lost after its lease, although each write is slow."""
    (node,) = m.nodes(1)
    async with m.disk_slow(0.5, 0.8):
        async with m.agent_stopped(node):
            await m.goes_on_without(node)
        await m.is_back(node)


# etcd, a proxy in between, names.


@action(AGENT + HOST)
async def etcd_is_down_for_long(m: Monkey) -> None:
    async with m.etcd_down():
        await m.pause(*OUTAGE_S)


@action(AGENT + HOST, charges=True)
async def a_worker_dies_while_etcd_is_down(m: Monkey) -> None:
    async with m.etcd_down():
        m.kill_workers(*m.nodes(1))
        await m.pause(*OUTAGE_S)


@action(HOST)
async def an_agent_dies_while_etcd_is_down(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.etcd_down():
        await m.kill_agents(node)
        await m.pause(*OUTAGE_S)
    await m.return_one_by_one(node)


@action(AGENT + STATE)
async def the_proxy_restarts(m: Monkey) -> None:
    async with m.proxy_down():
        await m.pause(*RESTART_S)


@action(AGENT + STATE, charges=True)
async def a_worker_dies_while_the_proxy_restarts(m: Monkey) -> None:
    async with m.proxy_down():
        m.kill_workers(*m.nodes(1))
        await m.pause(*RESTART_S)


@action(STATE)
async def an_agent_dies_while_the_proxy_restarts(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.proxy_down():
        await m.kill_agents(node)
        await m.pause(*RESTART_S)
    await m.return_one_by_one(node)


@action(AGENT + STATE)
async def the_proxy_restarts_while_names_are_lost(m: Monkey) -> None:
    async with m.names_lost(), m.proxy_down():
        await m.pause(*RESTART_S)


@action(AGENT)
async def the_server_is_down_while_names_are_lost(m: Monkey) -> None:
    async with m.names_lost():
        async with m.server_down():
            await m.pause(*RESTART_S)
        await m.calm()


@action(AGENT, charges=True)
async def a_worker_dies_while_names_are_lost(m: Monkey) -> None:
    async with m.names_lost():
        m.kill_workers(*m.nodes(1))
        await m.calm()


# Strangers, and other runs at the same server.


@action(AGENT + HOST, charges=True)
async def a_worker_dies_while_strangers_call(m: Monkey) -> None:
    async with m.strangers():
        m.kill_workers(*m.nodes(1))
        await m.calm()


@action(HOST)
async def an_agent_is_stopped_for_long_while_strangers_call(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.strangers():
        async with m.agent_stopped(node):
            await m.goes_on_without(node)
        await m.is_back(node)


@action(ANY)
async def a_run_is_forgotten_while_it_is_joined_again(m: Monkey) -> None:
    node, other = m.nodes(2)
    await m.side_run(node)
    for _ in range(3):
        async with asyncio.TaskGroup() as both:
            both.create_task(m.side_run(other))
            both.create_task(m.forget_side_run())
