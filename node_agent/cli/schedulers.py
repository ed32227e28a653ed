"""Schedulers that `--endpoint auto` knows. Each row has the variables that one scheduler gives to every node of a job.

A row gives the number of nodes, this node's index, the host of rdzv-server, and the name of the job. Flags and PET_*
variables take precedence. docs/how-to/schedulers.md names the sources. See ADR 32.
"""

import fnmatch
import re
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast
from zlib import crc32

from msgspec.structs import replace
from rdzv_protocol import flag_values

from node_agent.cli import rendezvous
from node_agent.cli.arguments import Arguments, read
from node_agent.flags import sort_key
from node_agent.kernel.config import Target, UsageError
from node_agent.words import schedulers as words

Environment = Mapping[str, str]
FIRST_PORT, PORTS = 20_480, 8_192
"""Ports of servers: below those that Linux and Kubernetes assign, and below torchrun's 29400."""


class Source(NamedTuple):
    """Variables that may contain one fact, in order of precedence, and the reader of their text.

    A name may contain a star, for any text. It counts if exactly one variable matches.
    """

    variables: tuple[str, ...]
    read: Callable[[str], str] = str.strip
    """Reader of a variable's text. If its result is empty, the text does not state the fact."""

    def find(self, environment: Environment) -> tuple[str, str] | None:
        """Return the first variable that states the fact, and the fact; None if there is none."""
        for variable in self.variables:
            names = fnmatch.filter(environment, variable) if "*" in variable else [variable]
            if len(names) == 1 and (value := self.read(environment.get(names[0], ""))):
                return names[0], value
        return None


def _of(*variables: str, read: Callable[[str], str] = str.strip) -> Source:
    return Source(variables, read)


NOTHING = Source(())


class Scheduler(NamedTuple):
    """Facts that one scheduler gives to each node of a job in variables."""

    name: str
    known_by: tuple[str, ...]
    """Variables by which the scheduler is recognized: all of them are set."""
    nodes: Source
    rank: Source
    """Index of this node. The node with 0 hosts the server."""
    host: Source
    """Name or address of the node with index 0."""
    job: tuple[Source, ...]
    """Parts of a name that is unique to one start of the job. Parts that are not set are omitted."""
    port: Source = NOTHING
    node_id: Source = NOTHING
    nproc: Source = NOTHING
    order: Source = NOTHING
    """Place of the node in the network, which orders the ranks so that near nodes get adjacent ranks. Without it `rank`
    orders them."""
    is_fixed: bool = False
    """Whether a job keeps the same nodes, so that none of them is ever replaced."""
    address_of: Callable[[str], str] = str
    """Return the address of a host, given the scheduler's name for it."""
    problem: Callable[[Environment], str] = lambda environment: ""
    """Return what is wrong with the start of this agent, and what to do, from its environment; empty if nothing is."""
    without_host: str = words.MASTER_ADDR
    """Advice for the error message if the scheduler does not give the host of the server."""


WORKERS = {
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NODEID": "GROUP_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS": "WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE": "LOCAL_WORLD_SIZE",
    "NODE_RANK": "GROUP_RANK",
}
"""Variables with the index and number of the agent's process, and the worker's variable for the same fact."""
AGENTS_ALONE = (
    *("SLURM_TASK_PID", "SLURM_GTIDS", "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"),
    *("OMPI_COMM_WORLD_", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess", "OMPI_MCA_orte_"),
    *("PMIX_", "PMI_", "MPI_LOCAL", "HYDI_", "MV2_COMM_WORLD_"),
)
"""Prefixes of variables that workers do not get. They repeat these facts, or make a process part of an MPI job, in
which a worker would take the agent's place."""


def _one_agent(variable: str, start: str) -> Callable[[Environment], str]:
    """Return a check for a launcher that has started as many processes on this node as the variable says."""

    def problem(environment: Environment) -> str:
        count = environment.get(variable, "1")
        return "" if count == "1" else words.several_agents_a_node(variable, count, start)

    return problem


def _first_word(text: str) -> str:
    """Return the first of several names or addresses, which commas, spaces or line ends separate."""
    return next(iter(text.replace(",", " ").split()), "")


# Slurm.

SPECIAL_STEPS = 0xFFFF_FFF0
"""Least number of steps that are not srun's: the batch script, an interactive shell, processes adopted by a login."""


def _slurm_problem(environment: Environment) -> str:
    step, nodes, tasks = (environment.get(f"SLURM_STEP_{name}", "") for name in ("ID", "NUM_NODES", "NUM_TASKS"))
    if not step.isdecimal() or int(step) >= SPECIAL_STEPS:
        return words.NO_STEP
    return "" if tasks == nodes else words.several_tasks_a_node(tasks, nodes)


def _first_host(nodelist: str) -> str:
    """Return the first name of a Slurm node list, such as gpu[01-04,07],cpu1."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0] if first else nodelist)


def _slurm_address(name: str) -> str:
    """Return the address of a node. Slurm is asked about a name that the system does not know."""
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


# Kubernetes.


def _index(hostname: str) -> str:
    """Return the index of a pod, from its host name."""
    found = re.search(r"-(\d+)$", hostname.partition(".")[0])
    return found[1] if found else ""


def _first_pod(hostname: str) -> str:
    """Return the name of the job's first pod in this pod's headless Service, empty without one."""
    name, dot, service = socket.getfqdn(hostname).partition(".")
    return f"{re.sub(r'-[0-9]+$', '-0', name)}.{service}" if dot else ""


def _job_name(hostname: str) -> str:
    return re.sub(r"-\d+$", "", hostname.partition(".")[0])


def _volcano_problem(environment: Environment) -> str:
    tasks = sorted(name[3:-6].lower() for name in fnmatch.filter(environment, "VC_*_HOSTS"))
    return "" if len(tasks) < 2 else words.no_common_index(tasks)


# Other launchers.


def _process_problem(environment: Environment) -> str:
    return words.RANK_OF_A_PROCESS if "LOCAL_RANK" in environment else ""


SCHEDULERS = (
    # Variables that operators set for torchrun itself take precedence.
    Scheduler(
        "Kubeflow",
        known_by=("PET_NODE_RANK", "PET_MASTER_ADDR"),
        nodes=_of("PET_NNODES"),
        rank=_of("PET_NODE_RANK"),
        host=_of("PET_MASTER_ADDR"),
        port=_of("PET_MASTER_PORT"),
        nproc=_of("PET_NPROC_PER_NODE"),
        job=(_of("PET_RDZV_ID", "PET_MASTER_ADDR"),),
    ),
    Scheduler(
        "Kubeflow (elastic)",
        known_by=("PET_RDZV_ENDPOINT", "PET_NNODES"),
        nodes=_of("PET_NNODES"),
        rank=_of("HOSTNAME", read=_index),
        host=_of("PET_RDZV_ENDPOINT", read=lambda endpoint: endpoint.rpartition(":")[0] or endpoint),
        port=_of("PET_RDZV_ENDPOINT", read=lambda endpoint: endpoint.rpartition(":")[2]),
        nproc=_of("PET_NPROC_PER_NODE"),
        job=(_of("PET_RDZV_ID", "PET_RDZV_ENDPOINT"),),
    ),
    # These schedulers run on top of others.
    Scheduler(
        "SkyPilot",
        known_by=("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS"),
        nodes=_of("SKYPILOT_NUM_NODES"),
        rank=_of("SKYPILOT_NODE_RANK"),
        host=_of("SKYPILOT_NODE_IPS", read=_first_word),
        nproc=_of("SKYPILOT_NUM_GPUS_PER_NODE"),
        job=(_of("SKYPILOT_TASK_ID"),),
    ),
    Scheduler(
        "dstack",
        known_by=("DSTACK_NODE_RANK", "DSTACK_NODES_NUM"),
        nodes=_of("DSTACK_NODES_NUM"),
        rank=_of("DSTACK_NODE_RANK"),
        host=_of("DSTACK_MASTER_NODE_IP"),
        nproc=_of("DSTACK_GPUS_PER_NODE"),
        job=(_of("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),),
    ),
    Scheduler(
        "LeaderWorkerSet",
        known_by=("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE"),
        nodes=_of("LWS_GROUP_SIZE"),
        rank=_of("LWS_WORKER_INDEX"),
        host=_of("LWS_LEADER_ADDRESS"),
        job=(_of("LWS_LEADER_ADDRESS"),),
    ),
    Scheduler(
        "Open MPI",
        known_by=("OMPI_COMM_WORLD_SIZE",),
        nodes=_of("OMPI_COMM_WORLD_SIZE"),
        rank=_of("OMPI_COMM_WORLD_RANK"),
        host=_of("MASTER_ADDR"),
        port=_of("MASTER_PORT"),
        job=(_of("PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "MASTER_ADDR"),),
        is_fixed=True,
        problem=_one_agent("OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun --map-by ppr:1:node -x MASTER_ADDR node-agent ..."),
        without_host=words.MASTER_ADDR_OF_OPEN_MPI,
    ),
    Scheduler(
        "Slurm",
        known_by=("SLURM_JOB_ID",),
        nodes=_of("SLURM_STEP_NUM_NODES"),
        rank=_of("SLURM_NODEID"),
        host=_of("SLURM_STEP_NODELIST", read=_first_host),
        job=(_of("SLURM_JOB_ID"), _of("SLURM_STEP_ID"), _of("SLURM_RESTART_COUNT")),
        node_id=_of("SLURMD_NODENAME"),
        nproc=_of("SLURM_GPUS_ON_NODE"),
        order=_of("SLURM_TOPOLOGY_ADDR"),
        address_of=_slurm_address,
        is_fixed=True,
        problem=_slurm_problem,
    ),
    Scheduler(
        "RANK and WORLD_SIZE of nodes",
        known_by=("RANK", "WORLD_SIZE", "MASTER_ADDR"),
        nodes=_of("WORLD_SIZE"),
        rank=_of("RANK"),
        host=_of("MASTER_ADDR"),
        port=_of("MASTER_PORT"),
        nproc=_of("NPROC_PER_NODE"),
        job=(_of("AIHC_JOB_NAME", "MASTER_ADDR"),),
        problem=_process_problem,
    ),
    Scheduler(
        "Volcano",
        known_by=("VC_TASK_INDEX",),
        nodes=_of("VC_*_NUM"),
        rank=_of("VC_TASK_INDEX"),
        host=_of("VC_*_HOSTS", read=_first_word),
        job=(_of("VC_*_HOSTS", read=_first_word),),
        problem=_volcano_problem,
        without_host=words.VOLCANO_SERVICE,
    ),
    Scheduler(
        "Kubernetes Job",
        known_by=("JOB_COMPLETION_INDEX",),
        nodes=NOTHING,
        rank=_of("JOB_COMPLETION_INDEX"),
        host=_of("HOSTNAME", read=_first_pod),
        job=(_of("HOSTNAME", read=_job_name),),
        without_host=words.KUBERNETES_SUBDOMAIN,
    ),
    Scheduler(
        "PMI",
        known_by=("PMI_RANK", "PMI_SIZE"),
        nodes=_of("PMI_SIZE"),
        rank=_of("PMI_RANK"),
        host=_of("MASTER_ADDR"),
        port=_of("MASTER_PORT"),
        job=(_of("PMI_JOBID", "MASTER_ADDR"),),
        is_fixed=True,
        problem=_one_agent("MPI_LOCALNRANKS", "mpiexec -ppn 1 -genv MASTER_ADDR ... node-agent ..."),
        without_host=words.MASTER_ADDR_OF_PMI,
    ),
)


class Found(NamedTuple):
    """Arguments completed from the scheduler's variables, and what follows for the workers."""

    arguments: Arguments
    """Arguments of the command line, with missing ones filled in."""
    target: Target
    """Server at which the nodes of the job meet."""
    line: str
    """Line for the console: the variables that were used, and the result."""
    sort_key: str
    """Place of this node among those without a rank."""
    environment: Environment
    """Environment that workers inherit, without the variables that are only for the agent."""
    workers: Mapping[str, str]
    """Variables of each worker, each with the variable from which it takes its value."""


def find(arguments: Arguments, environment: Environment) -> Found:
    """Complete the arguments of `--endpoint auto`. Raises `UsageError` if the scheduler gives too few facts."""
    flag = f"{arguments.source('rdzv_endpoint')} {arguments.rdzv_endpoint}"
    if arguments.is_written("rdzv_backend"):
        raise UsageError(words.backend_too(flag, arguments.source("rdzv_backend")))
    row = _row(environment)
    if row is None:
        raise UsageError(words.no_scheduler(flag, [row.name for row in SCHEDULERS]))
    if problem := row.problem(environment):
        raise UsageError(words.cannot_start(flag, row.name, problem))
    rank = row.rank.find(environment)
    if rank is None or not rank[1].isdecimal():
        raise UsageError(words.no_rank(flag, row.name, row.rank.variables))
    filled = _fill(arguments, row, environment)
    if filled.nnodes is None:
        raise UsageError(words.no_nodes(flag, row.name))
    target, server = _target(filled, row, environment, flag, hosts=int(rank[1]) == 0)
    least, most = filled.nnodes.least, filled.nnodes.most
    parts = [
        words.node(rank[1], least, most, rank[0], filled.source("nnodes")),
        *([words.named(filled.node_id, filled.source("node_id"))] if filled.node_id else []),
        words.workers(filled.nproc_per_node, filled.source("nproc_per_node")),
        words.run(filled.rdzv_id or "none", filled.source("rdzv_id")),
        server,
    ]
    order = row.order.find(environment)
    return Found(
        filled,
        target,
        words.found(flag, row.name, parts),
        sort_key((order or rank)[1]),
        {name: value for name, value in environment.items() if not name.startswith(AGENTS_ALONE)},
        {name: source for name, source in WORKERS.items() if name in environment},
    )


def nodes_of_job(environment: Environment) -> tuple[str, int] | None:
    """Return the variable that gives this job several nodes, with their number; None if it has one or gives none."""
    row = _row(environment)
    if row and not row.problem(environment) and (nodes := row.nodes.find(environment)):
        return (nodes[0], int(nodes[1])) if nodes[1].isdecimal() and int(nodes[1]) > 1 else None
    return None


def _row(environment: Environment) -> Scheduler | None:
    return next((row for row in SCHEDULERS if all(environment.get(name) for name in row.known_by)), None)


def _fill(arguments: Arguments, row: Scheduler, environment: Environment) -> Arguments:
    """Return the arguments with missing ones filled in from the scheduler's variables."""
    job = [found for part in row.job if (found := part.find(environment))]
    facts = {
        "nnodes": row.nodes.find(environment),
        "fixed_nodes": _fixed_nodes(arguments, row, environment),
        "node_id": row.node_id.find(environment),
        "nproc_per_node": row.nproc.find(environment),
        "rdzv_id": (", ".join(name for name, _ in job), ".".join(value for _, value in job)) if job else None,
    }
    if (nproc := facts["nproc_per_node"]) and nproc[1] == "0":  # no GPUs: as without the variable
        facts["nproc_per_node"] = None
    missing = {name: fact for name, fact in facts.items() if fact and name not in arguments.sources}
    values = {name: read(name, *fact) for name, fact in missing.items()}
    return arguments.filled(values, {name: variable for name, (variable, _) in missing.items()})


def _fixed_nodes(arguments: Arguments, row: Scheduler, environment: Environment) -> tuple[str, str] | None:
    """Return the variable with the fixed number of nodes of the run, and its value; None if more may join."""
    nodes = row.nodes.find(environment)
    is_of_this_job = row.is_fixed and "@" not in arguments.rdzv_endpoint
    if nodes is None or not is_of_this_job or not nodes[1].isdecimal() or int(nodes[1]) < 2:
        return None
    return nodes if arguments.most_nodes <= int(nodes[1]) else None


def _target(
    arguments: Arguments, row: Scheduler, environment: Environment, flag: str, *, hosts: bool
) -> tuple[Target, str]:
    """Return the server's place, and words about it for people. `hosts`: whether this node, by its rank, hosts the
    server.
    """
    if server := arguments.rdzv_endpoint.partition("@")[2]:
        return rendezvous.find(replace(arguments, rdzv_endpoint=server)), words.server(server)
    if arguments.most_nodes == 1:
        return Target(local_addr=arguments.local_addr or None), words.SERVER_IN_THIS_AGENT
    found = row.host.find(environment)
    if arguments.master_addr and arguments.source("master_addr") not in row.host.variables:
        source, host = arguments.source("master_addr"), arguments.master_addr.strip("[]")
        is_host = arguments.is_host
    elif found:
        source, host = found[0], row.address_of(found[1])
        is_host = hosts if arguments.is_host is None else arguments.is_host
    else:
        raise UsageError(words.no_host(flag, row.name, row.without_host))
    if not flag_values.is_host(host):
        raise UsageError(words.not_a_host(flag, row.name, source, host))
    port = _port(arguments, row, environment)
    target = rendezvous.on_named_node(arguments, (host, port), is_host=is_host)
    return target, words.server(flag_values.address(host, port), source, hosted_here=bool(is_host))


def _port(arguments: Arguments, row: Scheduler, environment: Environment) -> int:
    """Return the server's port: the user's, the scheduler's, or one derived from the job.

    8192 successive job numbers get different ports, so that jobs on one host do not collide. Most steps and restarts of
    one job also differ. If two do collide, they share a server, which keeps their runs apart.
    """
    if arguments.master_port is not None:
        return arguments.master_port
    if found := row.port.find(environment):
        return cast(int, read("master_port", *found))
    job, *parts = [(part.find(environment) or ("", ""))[1] for part in row.job]
    number = int(job) if job.isdecimal() else crc32(job.encode())
    return FIRST_PORT + (number + crc32(".".join(parts).encode())) % PORTS
