"""Rendezvous target: which server this agent uses, and whether it hosts that server.

rdzv-server serves all of torchrun's backends. They differ in where it runs:

    rdzv-server, etcd, etcd-v2   already runs at the endpoint
    c10d                         hosted by the node that the endpoint names, unless it already runs there
    static                       hosted by the node of rank 0, at --rdzv-endpoint or --master-addr, --master-port

A run of one node needs no server that others can reach. The agent itself contains it, unless c10d names a port. See
ADR 10.
"""

from collections.abc import Mapping

from msgspec.structs import replace
from rdzv_protocol import flag_values
from rdzv_protocol import words as protocol_words
from rdzv_protocol.paths import DEFAULT_PORT

from node_agent import words
from node_agent.cli.arguments import Arguments
from node_agent.kernel.config import Endpoint, Target, UsageError

MASTER_ADDR, MASTER_PORT = "127.0.0.1", 29_500
"""Defaults of `--master-addr` and `--master-port`, as in torchrun."""
ETCD_PORT = 2379
EVERY_ADDRESS = ("0.0.0.0", "::")
"""Addresses that a server can listen on but a client cannot connect to."""
SEVERAL_NODES = (
    ("WORLD_SIZE", 2, False),
    ("RANK", 1, False),
    ("JOB_COMPLETION_INDEX", 1, False),
    ("SLURM_STEP_NUM_NODES", 2, True),
    ("SLURM_JOB_NUM_NODES", 2, True),
    ("OMPI_COMM_WORLD_SIZE", 2, True),
    ("PMI_SIZE", 2, True),
)
"""Variables that show that this is not the only node. Each has the least number that shows it, and whether a scheduler
known to `--endpoint auto` sets it."""
_ELSEWHERE = ("rdzv_endpoint", "rdzv_backend", "rdzv_id", "master_addr", "master_port", "node_rank")
"""Arguments that `--standalone` ignores, as torchrun does."""
OUR_ENDPOINT = ("--endpoint", "PET_ENDPOINT")
"""Sources of an endpoint that torchrun does not have."""


def find(arguments: Arguments) -> Target:
    """Return the target that the flags define together. Raises `UsageError`."""
    if arguments.standalone:
        return _alone(arguments, "standalone", has_id_of_its_own=True)
    match backend(arguments):
        case "c10d":
            return _c10d(arguments)
        case "static":
            return _static(arguments)
        case _:
            return _at_a_server(arguments)


def backend(arguments: Arguments) -> str:
    """Return the named backend. Default: our own server for `--endpoint` or a list of servers, otherwise static as in
    torchrun.

    torchrun has neither `--endpoint` nor lists. Its `--rdzv-endpoint` without a backend names the node of rank 0.
    """
    is_ours = is_our_endpoint(arguments) or "," in arguments.rdzv_endpoint
    return arguments.rdzv_backend or ("rdzv-server" if is_ours else "static")


def is_our_endpoint(arguments: Arguments) -> bool:
    """Return whether the endpoint is from `--endpoint`, which torchrun does not have, or from a program without a back
    end.
    """
    return arguments.source("rdzv_endpoint") in OUR_ENDPOINT or (
        bool(arguments.terms) and arguments.rdzv_backend is None
    )


def is_for_the_scheduler(arguments: Arguments) -> bool:
    """Return whether a scheduler's variables give the rendezvous: `--endpoint auto` or `auto@HOST:PORT`."""
    return is_our_endpoint(arguments) and is_auto(arguments.rdzv_endpoint)


def is_auto(endpoint: str) -> bool:
    """Return whether an endpoint of ours leaves the rendezvous to the scheduler."""
    return endpoint.partition("@")[0] == "auto"


def notes(arguments: Arguments, target: Target, environment: Mapping[str, str]) -> list[str]:
    """Return lines about flags that may not do what the user wants. A program's values are taken as meant."""
    if arguments.terms:
        return []
    if arguments.standalone:
        void = arguments.written(_ELSEWHERE)
        return [words.rendezvous.ignored_on_one_node(arguments.source("standalone"), void)] if void else []
    ignored = ignored_master(arguments, target)
    if target.endpoint is None:
        return [*ignored, *_notes_of_one_node(arguments, environment)]
    if backend(arguments) != "static":
        return ignored
    if arguments.node_rank is None:
        is_place = arguments.rdzv_endpoint and arguments.rdzv_backend is None
        return [*ignored, words.rendezvous.no_node_rank(arguments.most_nodes, has_endpoint=bool(is_place))]
    if arguments.node_rank and not arguments.master_addr and not arguments.rdzv_endpoint:
        return [words.rendezvous.no_master_addr(MASTER_ADDR)]
    return ignored


def ignored_master(arguments: Arguments, target: Target) -> list[str]:
    """Return a line if `--master-addr` or `--master-port` has no effect. torchrun ignores them in the same cases.

    In a scheduler's job they name the node that hosts the server, if one does.
    """
    void = arguments.written(("master_addr", "master_port"))
    if not void or (is_for_the_scheduler(arguments) and target.is_on_a_node):
        return []
    if arguments.rdzv_endpoint:
        return [words.rendezvous.ignored_beside_endpoint(void, arguments.source("rdzv_endpoint"))]
    return [] if backend(arguments) == "static" else [words.rendezvous.ignored_without_static(void)]


def _notes_of_one_node(arguments: Arguments, environment: Mapping[str, str]) -> list[str]:
    if arguments.is_written("node_rank") and arguments.node_rank:
        return [words.rendezvous.rank_of_one_node(arguments.source("node_rank"), arguments.node_rank)]
    if arguments.nnodes is None and "TORCHELASTIC_RUN_ID" not in environment:
        for name, least, is_of_a_scheduler in SEVERAL_NODES:
            if (value := environment.get(name, "")).isdecimal() and int(value) >= least:
                return [words.rendezvous.several_nodes(name, value, is_of_a_scheduler)]
    return []


def _alone(arguments: Arguments, why: str, *, has_id_of_its_own: bool = False) -> Target:
    if arguments.nnodes and arguments.nnodes.least > 1:
        nnodes, rdzv_endpoint = arguments.source("nnodes"), arguments.own("rdzv_endpoint")
        raise UsageError(words.rendezvous.only_one_node(arguments.source(why), nnodes, rdzv_endpoint))
    return Target(has_id_of_its_own=has_id_of_its_own, local_addr=arguments.local_addr or None)


def _at_a_server(arguments: Arguments) -> Target:
    if not arguments.rdzv_endpoint and arguments.source("rdzv_endpoint") != "--endpoint":
        source, rdzv_endpoint = arguments.source("rdzv_backend"), arguments.own("rdzv_endpoint")
        raise UsageError(words.rendezvous.no_endpoint(source, backend(arguments), rdzv_endpoint))
    endpoint, *others = endpoints(arguments, ETCD_PORT if backend(arguments) in ("etcd", "etcd-v2") else None)
    if others and arguments.is_host:
        raise UsageError(words.rendezvous.several_to_host(arguments.source("rdzv_endpoint")))
    if endpoint[0] in EVERY_ADDRESS and arguments.most_nodes > 1:
        raise UsageError(words.rendezvous.every_address(arguments.source("rdzv_endpoint"), endpoint[0]))
    rank = _written_rank(arguments)
    if rank is not None and arguments.nnodes:
        _check_rank(arguments, rank)
    if arguments.is_host:
        return replace(_on_a_node(arguments, endpoint, hosts=True), node_rank=rank)
    return Target(endpoint, tuple(others), node_rank=rank, local_addr=arguments.local_addr or None)


def _c10d(arguments: Arguments) -> Target:
    """The node that the endpoint names is the host, as under torchrun. `is_host` decides if names cannot.

    torchrun ignores the node's rank here. `--node-rank` is a preference that is followed if possible, because job
    scripts give 0 to every node. PET_NODE_RANK is ignored: operators set it for every backend, and it may be another
    node's.
    """
    is_file = str(arguments.rdzv_conf.get("store_type", "")).lower() == "file"
    if is_file and arguments.most_nodes > 1:
        raise UsageError(
            words.rendezvous.not_in_a_file(arguments.source("rdzv_conf"), arguments.source("rdzv_endpoint"))
        )
    named = _endpoint(arguments, DEFAULT_PORT, lowest=0) if arguments.rdzv_endpoint and not is_file else None
    if named is None and arguments.most_nodes == 1:
        return _alone(arguments, "rdzv_backend")
    host, port = named or ("localhost", DEFAULT_PORT)
    if port == 0 and arguments.nnodes and arguments.nnodes.least > 1:
        raise UsageError(words.rendezvous.port_unknown(arguments.source("rdzv_endpoint")))
    if port == 0:
        return _alone(arguments, "rdzv_endpoint")
    return on_named_node(arguments, (host, port), is_host=arguments.is_host)


def on_named_node(arguments: Arguments, endpoint: Endpoint, *, is_host: bool | None) -> Target:
    """Return a server that the named node hosts. `is_host`: whether this is that node, None to compare the name."""
    if is_host is None:
        from node_agent.kernel.transport import this_machine

        is_host = this_machine.names_this_machine(endpoint[0])
    return replace(_on_a_node(arguments, endpoint, hosts=is_host), preferred_rank=_written_rank(arguments))


def _static(arguments: Arguments) -> Target:
    """Rank 0 is the host, and its address is the workers' MASTER_ADDR. MASTER_PORT is a separate port there."""
    host, port = _master(arguments)
    if arguments.most_nodes == 1:
        return _static_alone(arguments, host)
    rank = arguments.node_rank or 0
    _check_rank(arguments, rank)
    if port == 0:
        raise UsageError(words.rendezvous.port_unknown(arguments.source("master_port")))
    hosts = rank == 0 if arguments.is_host is None else arguments.is_host
    found = replace(_on_a_node(arguments, (host, port), hosts=hosts), node_rank=rank)
    return replace(found, local_addr=host) if rank == 0 else found


def _on_a_node(arguments: Arguments, endpoint: Endpoint, *, hosts: bool) -> Target:
    """Return a server that a node of the run hosts. `hosts`: whether this node does.

    If only one node is expected, or `--endpoint` names loopback, the server is not reachable from other machines.
    torchrun's scripts name `localhost` on one node and that node's name on the others. See ADR 31.
    """
    is_loopback = names_loopback(endpoint[0])
    return Target(
        endpoint,
        hosts=hosts,
        is_for_this_machine=hosts and is_loopback and (arguments.most_nodes == 1 or is_our_endpoint(arguments)),
        is_on_a_node=True,
        local_addr=arguments.local_addr or None,
    )


def names_loopback(host: str) -> bool:
    """Return whether this is the address of loopback, or its usual name."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _static_alone(arguments: Arguments, host: str) -> Target:
    """Return the target for one node: no server for others, and the workers get exactly the given address and port."""
    named = bool(arguments.rdzv_endpoint)
    port = _master(arguments)[1] if named else arguments.master_port
    is_named = named or arguments.master_port is not None or arguments.master_addr
    return Target(
        has_id_of_its_own=not named and arguments.master_port is None,
        local_addr=host if is_named else arguments.local_addr or None,
        master_port=port or None,
    )


def _master(arguments: Arguments) -> Endpoint:
    """Return the place of static's rank 0: the endpoint if there is one. Port 0, a free one, is allowed only for one
    node.
    """
    if arguments.rdzv_endpoint:
        return _endpoint(arguments, MASTER_PORT, lowest=0 if arguments.most_nodes == 1 else 1)
    port = MASTER_PORT if arguments.master_port is None else arguments.master_port
    return (arguments.master_addr or MASTER_ADDR).strip("[]"), port


def _written_rank(arguments: Arguments) -> int | None:
    return arguments.node_rank if arguments.is_written("node_rank") else None


def _check_rank(arguments: Arguments, rank: int) -> None:
    nodes = arguments.most_nodes
    if rank >= nodes:
        raise UsageError(words.rendezvous.rank_too_high(arguments.source("node_rank"), rank, nodes))


def _endpoint(arguments: Arguments, default_port: int, lowest: int = 1) -> Endpoint:
    """Return the only endpoint that is named."""
    if "," in arguments.rdzv_endpoint:
        raise UsageError(words.rendezvous.several_for_torchrun(arguments.source("rdzv_endpoint"), backend(arguments)))
    return endpoints(arguments, default_port, lowest)[0]


def endpoints(arguments: Arguments, default_port: int | None = None, lowest: int = 1) -> list[Endpoint]:
    """Return each named endpoint once. Without a default, a port must be named. Raises `UsageError`."""
    try:
        return flag_values.endpoints(arguments.rdzv_endpoint, default_port, lowest)
    except ValueError as error:
        raise UsageError(protocol_words.flags.bad_value(arguments.source("rdzv_endpoint"), str(error))) from None
