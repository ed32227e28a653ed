"""Rendezvous: reasons why it is not possible, and flags that may not do what the user wants.

`source` is the flag, the variable or the field that gave a value. Other fields of this kind are named after their
argument.
"""

from collections.abc import Sequence

# Flags that may not do what the user wants.


def ignored_on_one_node(source: str, void: Sequence[str]) -> str:
    return f"{source} ignores {', '.join(void)}: the run has this node only"


def ignored_beside_endpoint(void: Sequence[str], source: str) -> str:
    return f"ignoring {', '.join(void)}: {source} already says where the server is"


def ignored_without_static(void: Sequence[str]) -> str:
    return f"ignoring {', '.join(void)}: only --rdzv-backend static uses {'them' if len(void) > 1 else 'it'}"


def no_node_rank(nodes: int, has_endpoint: bool) -> str:
    """`nodes`: most nodes of the run. `has_endpoint`: whether the user may have meant a server there."""
    others = "the other node --node-rank 1" if nodes == 2 else f"the others --node-rank 1 to {nodes - 1}"
    instead = " (to use a server that already runs there, give --endpoint)" if has_endpoint else ""
    return f"no --node-rank: this node takes rank 0, and hosts rdzv-server; give {others}{instead}"


def no_master_addr(default: str) -> str:
    return f"no --master-addr: looking for the node of rank 0 on this machine, {default}"


def rank_of_one_node(source: str, rank: int) -> str:
    return f"ignoring {source} {rank}: the run has one node"


def several_nodes(variable: str, value: str, is_of_a_scheduler: bool) -> str:
    instead = ": --endpoint auto reads the nodes from the scheduler's variables" if is_of_a_scheduler else ""
    return f"{variable}={value} suggests several nodes; without --nnodes the run has this node only{instead}"


# Reasons why it is not possible.


def only_one_node(source: str, nnodes: str, rdzv_endpoint: str) -> str:
    return f"{source} runs on one node: leave {nnodes} out, or start rdzv-server and give {rdzv_endpoint}"


def no_endpoint(source: str, backend: str, rdzv_endpoint: str) -> str:
    return f"{source} {backend} needs {rdzv_endpoint} HOST:PORT, the address of rdzv-server"


def several_to_host(source: str) -> str:
    return f"{source}: is_host makes this agent host the server: name one server, not several"


def several_for_torchrun(source: str, backend: str) -> str:
    return f"{source}: --rdzv-backend {backend} takes one server: name one, or give --rdzv-backend rdzv-server"


def every_address(source: str, host: str) -> str:
    return (
        f"{source}: {host} means every address of this machine, so other nodes cannot connect to it: name "
        "the machine where rdzv-server runs"
    )


def not_in_a_file(source: str, rdzv_endpoint: str) -> str:
    return (
        f"{source}: store_type=file is only for one node: leave it out, and name the node that hosts the server with "
        f"{rdzv_endpoint} HOST:PORT"
    )


def port_unknown(source: str) -> str:
    return f"{source}: the other nodes cannot know a free port; name a port other than 0"


def rank_too_high(source: str, rank: int, nodes: int) -> str:
    return f"{source} {rank}: with {nodes} node{'s' * (nodes > 1)} the last one has rank {nodes - 1}"


def cannot_host(port: int, reason: object) -> str:
    return f"cannot host rdzv-server at port {port} of this node: {reason}"
