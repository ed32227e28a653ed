"""The table of deeds, and of what may come beside them.

A deed leads to all nodes being at work again, and costs what it tells the ledger.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import node_deeds, nuisances, server_deeds
from tests.chaos.monkey import Monkey

Act = Callable[[Monkey], Awaitable[None]]


@dataclass(frozen=True)
class Deed:
    """What is done, and beside which nuisances it may be done."""

    act: Act
    nuisances: tuple[Act, ...]

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")


AGENT = (nuisances.agent_stopped,)
HOST = (nuisances.host_cut_off, nuisances.server_cut_off, nuisances.network_lossy)
STATE = (nuisances.server_down, nuisances.server_stopped, nuisances.disk_slow, nuisances.disk_full)

DEEDS = (
    Deed(node_deeds.a_worker_dies, AGENT + HOST + STATE),
    Deed(node_deeds.workers_die_at_once, AGENT + HOST + STATE),
    Deed(node_deeds.a_worker_dies_while_its_agent_is_stopped, HOST + STATE),
    Deed(node_deeds.a_worker_dies_while_its_host_is_cut_off, AGENT + STATE),
    Deed(node_deeds.a_worker_dies_as_it_starts, AGENT + HOST + STATE),
    Deed(node_deeds.an_agent_dies, AGENT + HOST + STATE),
    Deed(node_deeds.agents_die_at_once, AGENT + HOST + STATE),
    Deed(node_deeds.all_agents_die_at_once, HOST + STATE),
    Deed(node_deeds.an_agent_is_dismissed, AGENT + HOST + STATE),
    Deed(node_deeds.all_agents_are_dismissed, HOST + STATE),
    Deed(node_deeds.an_agent_is_dismissed_while_the_server_is_down, AGENT + HOST),
    Deed(node_deeds.an_agent_dies_as_its_workers_start, AGENT + HOST + STATE),
    Deed(node_deeds.a_stopped_agent_is_replaced, HOST + STATE),
    Deed(node_deeds.an_agent_dies_while_a_round_forms, AGENT + HOST + STATE),
    Deed(node_deeds.a_newcomer_dies_while_its_round_forms, AGENT + HOST + STATE),
    Deed(node_deeds.an_agent_dies_while_another_is_stopped, HOST + STATE),
    Deed(node_deeds.an_agent_dies_while_another_is_stopped_for_long, HOST + STATE),
    Deed(node_deeds.an_agent_is_stopped_for_long, HOST + STATE),
    Deed(node_deeds.the_store_helper_dies, AGENT + HOST + STATE),
    Deed(node_deeds.the_store_helper_dies_with_workers, AGENT + HOST + STATE),
    Deed(node_deeds.the_store_helper_dies_with_its_agent, HOST + STATE),
    Deed(node_deeds.guardians_die, AGENT + HOST + STATE),
    Deed(node_deeds.an_agent_dies_with_its_guardian, HOST + STATE),
    Deed(node_deeds.warm_processes_die, AGENT + HOST + STATE),
    Deed(node_deeds.a_worker_dies_with_what_was_to_replace_it, AGENT + HOST + STATE),
    Deed(node_deeds.every_process_of_a_node_is_ended, HOST + STATE),
    Deed(node_deeds.a_host_is_cut_off_for_long, AGENT + STATE),
    Deed(node_deeds.a_worker_dies_on_a_host_that_is_cut_off_for_long, AGENT + STATE),
    Deed(node_deeds.the_server_is_cut_off_for_long, AGENT + STATE),
    Deed(server_deeds.the_server_is_down, AGENT + HOST),
    Deed(server_deeds.the_server_is_stopped_for_long, AGENT + HOST),
    Deed(server_deeds.a_worker_dies_while_the_server_is_down, AGENT + HOST),
    Deed(server_deeds.the_server_dies_with_a_worker, AGENT + HOST),
    Deed(server_deeds.the_server_dies_with_an_agent, AGENT + HOST),
    Deed(server_deeds.an_agent_is_replaced_while_the_server_is_down, HOST),
    Deed(server_deeds.the_server_dies_while_the_disk_is_full, AGENT + HOST),
    Deed(server_deeds.the_server_dies_while_a_round_forms, AGENT + HOST),
    Deed(server_deeds.a_worker_dies_while_the_disk_is_full, AGENT + HOST),
    Deed(server_deeds.a_worker_dies_while_the_disk_is_full_for_long, AGENT + HOST),
    Deed(server_deeds.a_worker_dies_while_the_disk_hangs, AGENT + HOST),
    Deed(server_deeds.a_worker_dies_while_the_disk_is_slow, AGENT + HOST),
    Deed(server_deeds.an_agent_dies_while_the_disk_is_slow, AGENT + HOST),
)
