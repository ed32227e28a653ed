"""The table of actions, and of what may come beside them.

An action leads to all nodes being at work again, and costs what it tells the ledger.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import faults, node_actions, server_actions
from tests.chaos.monkey import Monkey

Act = Callable[[Monkey], Awaitable[None]]


@dataclass(frozen=True)
class Action:
    """What is done, and beside which faults it may be done."""

    act: Act
    faults: tuple[Act, ...]

    @property
    def name(self) -> str:
        return self.act.__name__.replace("_", " ")


AGENT = (faults.agent_stopped,)
HOST = (faults.host_cut_off, faults.server_cut_off, faults.network_lossy)
STATE = (faults.server_down, faults.server_stopped, faults.disk_slow, faults.disk_full)

ACTIONS = (
    Action(node_actions.a_worker_dies, AGENT + HOST + STATE),
    Action(node_actions.workers_die_at_once, AGENT + HOST + STATE),
    Action(node_actions.a_worker_dies_while_its_agent_is_stopped, HOST + STATE),
    Action(node_actions.a_worker_dies_while_its_host_is_cut_off, AGENT + STATE),
    Action(node_actions.a_worker_dies_as_it_starts, AGENT + HOST + STATE),
    Action(node_actions.an_agent_dies, AGENT + HOST + STATE),
    Action(node_actions.agents_die_at_once, AGENT + HOST + STATE),
    Action(node_actions.all_agents_die_at_once, HOST + STATE),
    Action(node_actions.an_agent_is_dismissed, AGENT + HOST + STATE),
    Action(node_actions.all_agents_are_dismissed, HOST + STATE),
    Action(node_actions.an_agent_is_dismissed_while_the_server_is_down, AGENT + HOST),
    Action(node_actions.an_agent_dies_as_its_workers_start, AGENT + HOST + STATE),
    Action(node_actions.a_stopped_agent_is_replaced, HOST + STATE),
    Action(node_actions.an_agent_dies_while_a_round_forms, AGENT + HOST + STATE),
    Action(node_actions.a_newcomer_dies_while_its_round_forms, AGENT + HOST + STATE),
    Action(node_actions.an_agent_dies_while_another_is_stopped, HOST + STATE),
    Action(node_actions.an_agent_dies_while_another_is_stopped_for_long, HOST + STATE),
    Action(node_actions.an_agent_is_stopped_for_long, HOST + STATE),
    Action(node_actions.the_store_helper_dies, AGENT + HOST + STATE),
    Action(node_actions.the_store_helper_dies_with_workers, AGENT + HOST + STATE),
    Action(node_actions.the_store_helper_dies_with_its_agent, HOST + STATE),
    Action(node_actions.guardians_die, AGENT + HOST + STATE),
    Action(node_actions.an_agent_dies_with_its_guardian, HOST + STATE),
    Action(node_actions.warm_processes_die, AGENT + HOST + STATE),
    Action(node_actions.a_worker_dies_with_what_was_to_replace_it, AGENT + HOST + STATE),
    Action(node_actions.every_process_of_a_node_is_ended, HOST + STATE),
    Action(node_actions.a_host_is_cut_off_for_long, AGENT + STATE),
    Action(node_actions.a_worker_dies_on_a_host_that_is_cut_off_for_long, AGENT + STATE),
    Action(node_actions.the_server_is_cut_off_for_long, AGENT + STATE),
    Action(server_actions.the_server_is_down, AGENT + HOST),
    Action(server_actions.the_server_is_stopped_for_long, AGENT + HOST),
    Action(server_actions.a_worker_dies_while_the_server_is_down, AGENT + HOST),
    Action(server_actions.the_server_dies_with_a_worker, AGENT + HOST),
    Action(server_actions.the_server_dies_with_an_agent, AGENT + HOST),
    Action(server_actions.an_agent_is_replaced_while_the_server_is_down, HOST),
    Action(server_actions.the_server_dies_while_the_disk_is_full, AGENT + HOST),
    Action(server_actions.the_server_dies_while_a_round_forms, AGENT + HOST),
    Action(server_actions.a_worker_dies_while_the_disk_is_full, AGENT + HOST),
    Action(server_actions.a_worker_dies_while_the_disk_is_full_for_long, AGENT + HOST),
    Action(server_actions.a_worker_dies_while_the_disk_hangs, AGENT + HOST),
    Action(server_actions.a_worker_dies_while_the_disk_is_slow, AGENT + HOST),
    Action(server_actions.an_agent_dies_while_the_disk_is_slow, AGENT + HOST),
)
