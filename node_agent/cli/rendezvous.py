"""Where the nodes of a run meet: which server this agent goes to, and whether it hosts it.

torchrun's backends are all served by rdzv-server. What differs is where it is:

    rdzv-server, etcd, etcd-v2   runs at the endpoint already, started by somebody
    c10d                         the node that the endpoint names hosts it, unless it is there already
    static                       the node of rank 0 hosts it, at --rdzv-endpoint or --master-addr, --master-port

A run of one node needs no server that others could reach: it is in the agent itself, unless c10d names a port. See
docs/adr/0010.
"""

from collections.abc import Callable

from rdzv_protocol.paths import DEFAULT_PORT

from node_agent.cli.arguments import Asked
from node_agent.cli.rdzv_conf import RdzvConf
from node_agent.config import Endpoint, Target, UsageError

MASTER_ADDR, MASTER_PORT = "127.0.0.1", 29_500
"""torchrun's defaults."""
ETCD_PORT = 2379
OUR_ENDPOINT = ("--endpoint", "PET_ENDPOINT")
"""Sources of an endpoint that torchrun does not have."""
NO_PORT = -1


def find(asked: Asked, conf: RdzvConf) -> Target:
    """What the flags mean together. Raises `UsageError`."""
    if asked["standalone"]:
        return _alone(asked)
    return _BACKENDS[backend(asked)](asked, conf)


def backend(asked: Asked) -> str:
    """The backend that is named; else our own server for `--endpoint` or a list of servers, and torchrun's static."""
    named: str | None = asked["rdzv_backend"]
    return named or ("rdzv-server" if _is_our_server(asked) else "static")


def _is_our_server(asked: Asked) -> bool:
    """torchrun has neither `--endpoint` nor lists; what it has, `--rdzv-endpoint`, alone names the node of rank 0."""
    return asked.source("rdzv_endpoint") in OUR_ENDPOINT or "," in (asked["rdzv_endpoint"] or "")


def notes(asked: Asked) -> list[str]:
    """What the user may not have meant, one line each."""
    if asked["standalone"]:
        void = [asked.source(name) for name in ("rdzv_endpoint", "rdzv_backend", "rdzv_id") if asked.is_flag(name)]
        return [f"{asked.source('standalone')}: this node alone; {', '.join(void)} counts for nothing"] if void else []
    if backend(asked) != "static" or _most_nodes(asked) == 1:
        return []
    if asked["node_rank"] is None:
        is_place = _has_endpoint(asked) and asked["rdzv_backend"] is None
        instead = " (a server that runs there already: --endpoint)" if is_place else ""
        return [f"no --node-rank: this node takes rank 0, and hosts rdzv-server for the others{instead}"]
    if asked["node_rank"] and asked["master_addr"] is None and not _has_endpoint(asked):
        return [f"no --master-addr: looking for the node of rank 0 on this machine, {MASTER_ADDR}"]
    return []


def _alone(asked: Asked) -> Target:
    if asked["nnodes"] not in (None, (1, 1)):
        raise UsageError(
            f"{asked.source('standalone')} is for one node: leave {asked.source('nnodes')} out, or start rdzv-server "
            "and give --endpoint"
        )
    return Target(has_id_of_its_own=True, local_addr=_local_addr(asked))


def _at_a_server(asked: Asked, conf: RdzvConf) -> Target:
    """`--node-rank` is asked for where the user wrote it: see `_c10d`."""
    if not _has_endpoint(asked):
        named = asked.source("rdzv_backend")
        raise UsageError(f"{named} {asked['rdzv_backend']} needs --endpoint HOST:PORT: where does rdzv-server listen?")
    default_port = ETCD_PORT if backend(asked) in ("etcd", "etcd-v2") else NO_PORT
    endpoint, *others = _endpoints(asked, default_port)
    if others and conf.is_host:
        raise UsageError(f"{asked.source('rdzv_endpoint')}: several servers, and is_host: name the one to host")
    return Target(
        endpoint=endpoint,
        others=tuple(others),
        hosts=bool(conf.is_host),
        is_on_a_node=bool(conf.is_host),
        node_rank=_written_node_rank(asked),
        local_addr=_local_addr(asked),
    )


def _c10d(asked: Asked, conf: RdzvConf) -> Target:
    """The node that the endpoint names is the host, as under torchrun; `is_host` settles what names cannot.

    torchrun ignores the node's rank here. `--node-rank` is a wish, which is granted where it can be: job scripts give 0
    to every node. PET_NODE_RANK is not even that: operators set it for every backend, and it may be another node's.
    """
    named = _endpoint(asked, DEFAULT_PORT, lowest=0) if _has_endpoint(asked) else None
    if _most_nodes(asked) == 1 and (named is None or named[1] == 0):
        return Target(local_addr=_local_addr(asked))
    host, port = named or ("localhost", DEFAULT_PORT)
    if port == 0:
        raise UsageError(f"{asked.source('rdzv_endpoint')}: the other nodes cannot know a free port; name one, not 0")
    return Target(
        endpoint=(host, port),
        hosts=_names_this_machine(host) if conf.is_host is None else conf.is_host,
        is_on_a_node=True,
        preferred_rank=_written_node_rank(asked),
        local_addr=_local_addr(asked),
    )


def _static(asked: Asked, conf: RdzvConf) -> Target:
    """Rank 0 is the host and its address the workers' MASTER_ADDR. MASTER_PORT is a port of its own there."""
    host, port = _master(asked)
    if _most_nodes(asked) == 1:
        return _static_alone(asked, host)
    rank, nodes = asked["node_rank"] or 0, _most_nodes(asked)
    if rank >= nodes:
        raise UsageError(f"{asked.source('node_rank')} {rank}: with {nodes} nodes the last one has rank {nodes - 1}")
    return Target(
        endpoint=(host, port),
        hosts=rank == 0 if conf.is_host is None else conf.is_host,
        is_on_a_node=True,
        node_rank=rank,
        local_addr=host if rank == 0 else _local_addr(asked),
    )


def _static_alone(asked: Asked, host: str) -> Target:
    """One node: no server for others, and the workers have exactly the address and the port that are given."""
    if asked.is_flag("node_rank") and asked["node_rank"] > 0:
        source, rank = asked.source("node_rank"), asked["node_rank"]
        raise UsageError(f"{source} {rank}: the run has one node; is --nnodes missing?")
    is_named = _has_endpoint(asked) or asked["master_port"] is not None or asked["master_addr"] is not None
    return Target(
        has_id_of_its_own=not _has_endpoint(asked) and asked["master_port"] is None,
        local_addr=host if is_named else _local_addr(asked),
        master_port=_master(asked)[1] or None if _has_endpoint(asked) else asked["master_port"],
    )


_BACKENDS: dict[str, Callable[[Asked, RdzvConf], Target]] = {
    "rdzv-server": _at_a_server,
    "etcd": _at_a_server,
    "etcd-v2": _at_a_server,
    "c10d": _c10d,
    "static": _static,
}


def _master(asked: Asked) -> Endpoint:
    """Where static's rank 0 is: at the endpoint if there is one. Port 0, a free one, is for one node alone."""
    if _has_endpoint(asked):
        return _endpoint(asked, MASTER_PORT, lowest=0 if _most_nodes(asked) == 1 else 1)
    return (asked["master_addr"] or MASTER_ADDR).strip("[]"), asked["master_port"] or MASTER_PORT


def _has_endpoint(asked: Asked) -> bool:
    """torchrun's own flag says nothing when it is empty. Ours is empty by mistake."""
    return bool(asked["rdzv_endpoint"]) or asked.source("rdzv_endpoint") == "--endpoint"


def _most_nodes(asked: Asked) -> int:
    return int(asked["nnodes"][1]) if asked["nnodes"] else 1


def _written_node_rank(asked: Asked) -> int | None:
    return asked["node_rank"] if asked.is_flag("node_rank") else None


def _local_addr(asked: Asked) -> str | None:
    address: str | None = asked["local_addr"] or None
    if address is not None and not (len(address) <= 128 and address.isprintable()):
        raise UsageError(f"{asked.source('local_addr')}: 1 to 128 printable characters, not {address!r:.60}")
    return address


def _endpoint(asked: Asked, default_port: int, lowest: int = 1) -> Endpoint:
    """The one that is named."""
    if "," in asked["rdzv_endpoint"]:
        raise UsageError(
            f"{asked.source('rdzv_endpoint')}: several servers are for --rdzv-backend rdzv-server, not "
            f"{backend(asked)}: name one"
        )
    return _read_endpoint(asked["rdzv_endpoint"].strip(), asked.source("rdzv_endpoint"), default_port, lowest)


def _endpoints(asked: Asked, default_port: int) -> list[Endpoint]:
    """Each that is named, once."""
    source = asked.source("rdzv_endpoint")
    texts = asked["rdzv_endpoint"].split(",")
    return list(dict.fromkeys(_read_endpoint(text.strip(), source, default_port) for text in texts))


def _read_endpoint(text: str, source: str, default_port: int, lowest: int = 1) -> Endpoint:
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.startswith("[")):
        if default_port == NO_PORT or not text or (":" in text and not text.startswith("[")):
            raise UsageError(f"{source}: {text!r} has no port: give HOST:PORT, such as {text or 'HOST'}:{DEFAULT_PORT}")
        host, port = text, str(default_port)
    is_port = port.isascii() and port.isdigit() and lowest <= int(port) <= 65_535
    if not host.strip("[]") or not host.isprintable() or set(host) & set(" /") or not is_port:
        raise UsageError(f"{source}: {text!r} is not HOST:PORT with a port from {lowest} to 65535")
    return host.strip("[]"), int(port)


def _names_this_machine(host: str) -> bool:
    from node_agent.transport.this_machine import names_this_machine

    return names_this_machine(host)
