"""What may happen to workers, agents and their hosts, and what each must cost."""

import shutil
import signal

from tests.chaos import traces
from tests.chaos.fleet import NODES
from tests.chaos.monkey import BRIEF_S, Monkey
from tests.hosts.cluster import SERVER

# Workers.


async def a_worker_dies(m: Monkey) -> None:
    m.kill_workers(*m.nodes(1))
    m.ledger.worker_failed()


async def workers_die_at_once(m: Monkey) -> None:
    m.kill_workers(*m.nodes(3))
    m.ledger.worker_failed()


async def a_worker_dies_while_its_agent_is_stopped(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.agent_stopped(node):
        m.kill_workers(node)
        m.ledger.worker_failed()
        await m.pause(0.0, BRIEF_S)


async def a_worker_dies_while_its_host_is_cut_off(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        m.kill_workers(node)
        m.ledger.worker_failed()
        await m.pause(0.0, BRIEF_S)


async def a_worker_dies_as_it_starts(m: Monkey) -> None:
    """After the round for it was opened by another one's death, and before it has met its peers."""
    first, second = m.nodes(2)
    m.kill_workers(first)
    m.ledger.worker_failed()
    await m.kill_fresh_worker(second)
    m.ledger.round_completes()
    m.ledger.worker_failed()


# Agents.


async def an_agent_dies(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    m.ledger.node_lost(node)
    await m.calm()
    await m.return_one_by_one(node)


async def agents_die_at_once(m: Monkey) -> None:
    nodes = m.nodes(m.random.randint(2, 3))
    await m.kill_agents(*nodes)
    m.ledger.node_lost(*nodes)
    await m.calm()
    await m.return_one_by_one(*nodes)


async def all_agents_die_at_once(m: Monkey) -> None:
    await m.kill_agents(*NODES)
    m.ledger.node_lost(*NODES)
    await m.pause(0.0, 2.0)
    await m.start_agents(*NODES)


async def an_agent_is_dismissed(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.dismiss_agents(node)
    m.ledger.node_left(node)
    await m.calm()
    await m.return_one_by_one(node)


async def all_agents_are_dismissed(m: Monkey) -> None:
    await m.dismiss_agents(*NODES)
    m.ledger.node_left(*NODES)
    await m.pause(0.0, 2.0)
    await m.start_agents(*NODES)


async def an_agent_is_dismissed_while_the_server_is_down(m: Monkey) -> None:
    """It goes without having said so."""
    (node,) = m.nodes(1)
    async with m.server_down():
        await m.dismiss_agents(node)
        m.ledger.node_lost(node)
    await m.calm()
    await m.return_one_by_one(node)


async def an_agent_dies_as_its_workers_start(m: Monkey) -> None:
    (node,) = m.nodes(1)
    await m.kill_agents(node)
    m.ledger.node_lost(node)
    await m.calm()
    await m.start_agents(node)
    m.ledger.node_arrived(node)
    await m.fleet.fresh_worker(node)
    m.ledger.round_completes()
    await m.kill_agents(node)
    m.ledger.node_lost(node)
    await m.calm()
    await m.return_one_by_one(node)


async def a_stopped_agent_is_replaced(m: Monkey) -> None:
    """The scheduler takes it for dead, starts another one, and then kills it."""
    (node,) = m.nodes(1)
    stopped = m.fleet.agents[node]
    m.say(f"stop the agent of {node}")
    stopped.signal(signal.SIGSTOP)
    await m.start_agents(node)
    m.ledger.node_lost(node)
    await m.fleet.takes_part(node)
    await m.calm()
    m.say(f"kill the agent of {node} that is stopped")
    await stopped.end()


async def an_agent_dies_while_a_round_forms(m: Monkey) -> None:
    """And is replaced before the round is complete."""
    held, failing, dying = m.nodes(3)
    async with m.worker_held(held):
        m.kill_workers(failing)
        m.ledger.worker_failed()
        await m.fleet.stops(held)
        await m.kill_agents(dying)
        m.ledger.node_lost(dying)
        await m.pause(0.0, 1.5)
        await m.start_agents(dying)
        await m.fleet.waits(dying)


async def a_newcomer_dies_while_its_round_forms(m: Monkey) -> None:
    """The restart that was to admit it is made, and admits its successor."""
    held, dying = m.nodes(2)
    await m.kill_agents(dying)
    m.ledger.node_lost(dying)
    await m.calm()
    async with m.worker_held(held):
        await m.start_agents(dying)
        m.ledger.node_arrived(dying)
        await m.fleet.waits(dying)
        await m.kill_agents(dying)
        await m.start_agents(dying)
        await m.fleet.waits(dying)


async def an_agent_dies_while_another_is_stopped(m: Monkey) -> None:
    stopped, dying = m.nodes(2)
    async with m.agent_stopped(stopped):
        await m.kill_agents(dying)
        m.ledger.node_lost(dying)
        await m.pause(0.0, BRIEF_S)
    await m.calm()
    await m.return_one_by_one(dying)


async def an_agent_dies_while_another_is_stopped_for_long(m: Monkey) -> None:
    stopped, dying = m.nodes(2)
    async with m.agent_stopped(stopped):
        await m.kill_agents(dying)
        m.ledger.node_lost(dying)
        await without(m, stopped)
    await back(m, stopped)
    await m.return_one_by_one(dying)


async def an_agent_is_stopped_for_long(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.agent_stopped(node):
        await without(m, node)
    await back(m, node)


# What there is beside workers and agents, alone or in the same instant as they.


async def the_store_helper_dies(m: Monkey) -> None:
    """The round cannot go on without its store: it restarts, as after a worker's failure."""
    m.kill_helpers("store helper", await m.store_host())
    m.ledger.worker_failed()


async def the_store_helper_dies_with_workers(m: Monkey) -> None:
    host = await m.store_host()
    m.kill_helpers("store helper", host)
    m.kill_workers(host, host)
    m.ledger.worker_failed()


async def the_store_helper_dies_with_its_agent(m: Monkey) -> None:
    host = await m.store_host()
    m.kill_helpers("store helper", host)
    await m.kill_agents(host)
    m.ledger.node_lost(host)
    await m.calm()
    await m.return_one_by_one(host)


async def guardians_die(m: Monkey) -> None:
    m.kill_helpers("guardian", *m.nodes(3))


async def an_agent_dies_with_its_guardian(m: Monkey) -> None:
    """Nobody is left then who could remove the agent's temporary folder."""
    (node,) = m.nodes(1)
    folders = map(traces.folder_of, traces.helpers(m.fleet.agents[node].pid, "guardian"))
    left_behind = list(folders)
    m.kill_helpers("guardian", node)
    await m.kill_agents(node)
    for folder in left_behind:
        shutil.rmtree(folder, ignore_errors=True)
    m.ledger.node_lost(node)
    await m.calm()
    await m.return_one_by_one(node)


async def warm_processes_die(m: Monkey) -> None:
    nodes = m.nodes(2)
    m.kill_helpers("warm processes", *nodes)
    m.kill_helpers("fork server", *nodes)


async def a_worker_dies_with_what_was_to_replace_it(m: Monkey) -> None:
    (node,) = m.nodes(1)
    m.kill_helpers("warm processes", node)
    m.kill_helpers("fork server", node)
    m.kill_workers(node)
    m.ledger.worker_failed()


async def every_process_of_a_node_is_ended(m: Monkey) -> None:
    """SIGTERM to all of them in the same instant, as Slurm and systemd do."""
    (node,) = m.nodes(1)
    m.say(f"end every process of {node}")
    await m.fleet.end_every_process(node)
    m.ledger.node_left(node)
    await m.calm()
    await m.return_one_by_one(node)


# Hosts.


async def a_host_is_cut_off_for_long(m: Monkey) -> None:
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        await without(m, node)
    await back(m, node)


async def a_worker_dies_on_a_host_that_is_cut_off_for_long(m: Monkey) -> None:
    """Nobody hears of its death before the host is given up, which explains it."""
    (node,) = m.nodes(1)
    async with m.cut_off(node):
        m.kill_workers(node)
        await without(m, node)
    await back(m, node)


async def the_server_is_cut_off_for_long(m: Monkey) -> None:
    """It must give every node up; they form one new round when it is back."""
    async with m.cut_off(SERVER):
        await m.fleet.deserted()
        m.ledger.node_lost(*NODES)


async def without(m: Monkey, node: str) -> None:
    """The run gives the node up and goes on."""
    m.fleet.up.discard(node)
    m.ledger.node_lost(node)
    await m.calm()


async def back(m: Monkey, node: str) -> None:
    """A node that was given up finds out, and joins anew."""
    m.fleet.up.add(node)
    m.ledger.node_arrived(node)
    await m.calm()
