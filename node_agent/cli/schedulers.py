"""Schedulers that `--endpoint auto` knows: one row each, of the variables that they give to every node of a job.

A row says how many nodes there are, which one this is, who hosts rdzv-server, and what the job is called. Flags and
PET_* variables that are given go before it. See docs/schedulers.md, which names the sources, and docs/adr/0032.
"""

import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast
from zlib import crc32

from node_agent.cli.arguments import Arguments, read
from node_agent.config import UsageError

Environment = Mapping[str, str]
FIRST_PORT, PORTS = 20_480, 8_192
"""Ports of servers: below those that Linux and Kubernetes hand out by themselves, and below torchrun's 29400."""


def _as_it_is(text: str) -> str:
    return text


class Source(NamedTuple):
    """Variables that may hold one fact, the first one first, and how its text is read."""

    variables: tuple[str, ...]
    read: Callable[[str], str] = _as_it_is

    def find(self, environment: Environment) -> tuple[str, str] | None:
        """The first variable that is set, and what it says."""
        for variable in self.variables:
            if value := environment.get(variable, "").strip():
                return variable, self.read(value)
        return None


def _of(*variables: str, read: Callable[[str], str] = _as_it_is) -> Source:
    return Source(variables, read)


NOTHING = Source(())


class Scheduler(NamedTuple):
    """Facts that one scheduler tells each node of a job, and what its variables would tell workers wrongly."""

    name: str
    known_by: tuple[str, ...]
    """It is this one if all of these are set."""
    start: str
    """Command line that starts one agent a node, for messages."""
    nodes: Source
    rank: Source
    """Index of this node; the one with 0 hosts the server."""
    host: Source
    """Name or address of that node."""
    job: tuple[str, ...]
    """Variables that tell one start of a job from every other; those that are not set are left out."""
    port: Source = NOTHING
    node_id: Source = NOTHING
    nproc: Source = NOTHING
    order: Source = NOTHING
    """Place of the node in the network: near nodes get ranks next to each other. Without it, by `rank`."""
    address_of: Callable[[str], str] = _as_it_is
    """Address of a host by the scheduler's name for it."""
    trouble: Callable[[Environment], str] = lambda _: ""
    """What is wrong with how this agent was started; empty: nothing."""
    workers: Mapping[str, str] = {}
    """Variables that say which process the agent is, and the worker's variable that says it of a worker."""
    agents_alone: tuple[str, ...] = ()
    """Beginnings of the names of variables that are the agent's alone: workers do not get them."""


MPI_ONLY = ("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "PMIX_", "PMI_", "MPI_LOCAL", "HYDI_", "MV2_COMM_WORLD_")
"""Variables by which a process joins an MPI job: a worker that did so would take the agent's place."""


# Slurm.

SPECIAL_STEPS = 0xFFFF_FFF0
"""Steps from here on are not srun's: the batch script, an interactive shell, processes adopted by a login."""


def _slurm_trouble(environment: Environment) -> str:
    step, nodes, tasks = (environment.get(f"SLURM_STEP_{name}", "") for name in ("ID", "NUM_NODES", "NUM_TASKS"))
    if not step.isdecimal() or int(step) >= SPECIAL_STEPS:
        return "this is a job's script or shell, and not a step on each of its nodes"
    return "" if tasks == nodes else f"this step has {tasks} tasks on {nodes} nodes, not one on each"


def _first_host(nodelist: str) -> str:
    """First name of a Slurm node list, such as gpu[01-04,07],cpu1."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else nodelist)


def _slurm_address(name: str) -> str:
    """Address of a node; Slurm is asked about one whose name means nothing to the system."""
    import subprocess

    try:
        socket.getaddrinfo(name, None)
    except OSError:
        try:
            command = ("scontrol", "--oneliner", "show", "node", name)
            shown = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
        except (OSError, subprocess.TimeoutExpired):
            return name
        found = re.search(r"\bNodeAddr=(\S+)", shown)
        return found[1] if found else name
    return name


SCHEDULERS = (
    Scheduler(
        "Slurm",
        known_by=("SLURM_JOB_ID",),
        start="srun --ntasks-per-node=1 node-agent --endpoint auto ...",
        nodes=_of("SLURM_STEP_NUM_NODES"),
        rank=_of("SLURM_NODEID"),
        host=_of("SLURM_STEP_NODELIST", read=_first_host),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        node_id=_of("SLURMD_NODENAME"),
        nproc=_of("SLURM_GPUS_ON_NODE"),
        order=_of("SLURM_TOPOLOGY_ADDR"),
        address_of=_slurm_address,
        trouble=_slurm_trouble,
        workers={
            "SLURM_PROCID": "RANK",
            "SLURM_LOCALID": "LOCAL_RANK",
            "SLURM_NODEID": "GROUP_RANK",
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), "WORLD_SIZE"),
            "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
        },
        agents_alone=("SLURM_TASK_PID", "SLURM_GTIDS", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", *MPI_ONLY),
    ),
)  # fmt: skip


class Found(NamedTuple):
    """What the scheduler of this node says."""

    arguments: Arguments
    """The arguments, completed."""
    line: str
    """Variables that were used, and what came of them."""
    sort_key: str
    """Place of this node among those that have no rank yet."""
    environment: Environment
    """What workers inherit: without what is the agent's alone."""
    workers: Mapping[str, str]
    """Variables of each worker that get the value of another one."""


def find(arguments: Arguments, environment: Environment) -> Found:
    """Complete the arguments of `--endpoint auto`. Raises `UsageError` where the scheduler says too little."""
    flag = f"{arguments.source('rdzv_endpoint')} {arguments.rdzv_endpoint}"
    if arguments.is_written("rdzv_backend"):
        raise UsageError(f"{flag} says where the server is: leave {arguments.source('rdzv_backend')} out")
    row = next((row for row in SCHEDULERS if all(environment.get(name) for name in row.known_by)), None)
    if row is None:
        known = ", ".join(row.name for row in SCHEDULERS)
        raise UsageError(
            f"{flag}: there are no variables of a scheduler here (known: {known}): give --endpoint HOST:PORT and "
            "--nnodes, or --standalone"
        )
    if trouble := row.trouble(environment):
        raise UsageError(f"{flag}: {row.name}: {trouble}: start it as {row.start}")
    rank = row.rank.find(environment)
    if rank is None or not rank[1].isdecimal():
        raise UsageError(f"{flag}: {row.name}: {' or '.join(row.rank.variables)} does not say which node this is")
    filled = _fill(arguments, row, environment)
    if filled.nnodes is None:
        raise UsageError(f"{flag}: {row.name} does not say how many nodes there are: give --nnodes")
    filled, server = _with_server(filled, row, environment, flag, hosts=int(rank[1]) == 0)
    nodes = ":".join(map(str, dict.fromkeys(filled.nnodes or ())))
    workers, run = filled.nproc_per_node, filled.rdzv_id or "none"
    said = [
        f"node {rank[1]} of {nodes} ({rank[0]}, {filled.source('nnodes')})",
        f"named {filled.node_id} ({filled.source('node_id')})" if filled.node_id else "",
        f"{workers} worker{'s' * (workers != 1)} ({filled.source('nproc_per_node')})",
        f"run {run} ({filled.source('rdzv_id')})",
        server,
    ]
    order = row.order.find(environment)
    return Found(
        filled,
        f"{flag}: {row.name}: {', '.join(each for each in said if each)}",
        re.sub(r"\d+", lambda digits: digits[0].zfill(8), (order or rank)[1]),
        {name: value for name, value in environment.items() if not name.startswith(row.agents_alone)},
        {name: source for name, source in row.workers.items() if name in environment},
    )


def _fill(arguments: Arguments, row: Scheduler, environment: Environment) -> Arguments:
    """The arguments that nobody gave, by the scheduler's variables."""
    job = [(name, value) for name in row.job if (value := environment.get(name))]
    facts = {
        "nnodes": row.nodes.find(environment),
        "node_id": row.node_id.find(environment),
        "nproc_per_node": row.nproc.find(environment),
        "rdzv_id": (", ".join(name for name, _ in job), ".".join(value for _, value in job)) if job else None,
    }
    if (nproc := facts["nproc_per_node"]) and nproc[1] == "0":  # no GPUs: as without the variable
        facts["nproc_per_node"] = None
    found = {name: fact for name, fact in facts.items() if fact and name not in arguments.sources}
    values: dict[str, Any] = {name: read(name, *fact) for name, fact in found.items()}
    sources = {**arguments.sources, **{name: variable for name, (variable, _) in found.items()}}
    return arguments._replace(**values, sources=sources)


def _with_server(
    arguments: Arguments, row: Scheduler, environment: Environment, flag: str, *, hosts: bool
) -> tuple[Arguments, str]:
    """The arguments, and words for people, with the server's place. `hosts`: by its rank this node hosts it."""
    if server := arguments.rdzv_endpoint.partition("@")[2]:
        return arguments._replace(rdzv_endpoint=server), f"rdzv-server at {server}"
    if arguments.nnodes and arguments.nnodes[1] == 1:
        return arguments._replace(rdzv_backend="c10d", rdzv_endpoint=""), "rdzv-server in this agent"
    found = row.host.find(environment)
    if arguments.master_addr:
        source, host = arguments.source("master_addr"), arguments.master_addr.strip("[]")
        is_host = arguments.is_host
    elif found:
        source, host = found[0], row.address_of(found[1])
        is_host = hosts if arguments.is_host is None else arguments.is_host
    else:
        raise UsageError(f"{flag}: {row.name} does not say who hosts rdzv-server: give --master-addr HOST")
    port = _port(arguments, row, environment)
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    where = f"rdzv-server at {shown} ({source})" + (", hosted here" if is_host else "")
    return arguments._replace(rdzv_backend="c10d", rdzv_endpoint=shown, is_host=is_host), where


def _port(arguments: Arguments, row: Scheduler, environment: Environment) -> int:
    """Port of the server: the user's, or the scheduler's, or one derived from the job.

    Of 8192 successive job numbers each has another port, so that jobs on one host do not meet; and so do most of the
    steps and restarts of one job. Should two meet all the same they share a server, which keeps runs apart.
    """
    if arguments.master_port is not None:
        return arguments.master_port
    if found := row.port.find(environment):
        return cast(int, read("master_port", *found))
    job, *parts = [environment.get(name, "") for name in row.job] or [""]
    number = int(job) if job.isdecimal() else crc32(job.encode())
    return FIRST_PORT + (number + crc32(".".join(parts).encode())) % PORTS
