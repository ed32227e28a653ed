"""Facts that `--endpoint auto` has found in a scheduler's variables, and facts that are missing.

`flag` is the endpoint as it was given.
"""

from collections.abc import Sequence

from rdzv_protocol.text import size_range

MASTER_ADDR = "give --master-addr HOST"
MASTER_ADDR_OF_OPEN_MPI = "give --master-addr HOST, or mpirun -x MASTER_ADDR=HOST, with the host of rank 0"
MASTER_ADDR_OF_PMI = "give --master-addr HOST, or mpiexec -genv MASTER_ADDR HOST, with the host of rank 0"
VOLCANO_SERVICE = "add the svc plug-in to the job, or give --master-addr HOST"
KUBERNETES_SUBDOMAIN = "give the pods a subdomain, the name of a headless Service, or give --master-addr HOST"
SERVER_IN_THIS_AGENT = "rdzv-server in this agent"
RANK_OF_A_PROCESS = (
    "LOCAL_RANK is set, so RANK may be the rank of a process: if it is the node's, unset LOCAL_RANK; or else give "
    "--endpoint HOST:PORT"
)
_SRUN = "start the agent with srun --ntasks-per-node=1 node-agent --endpoint auto ..."
NO_STEP = f"this is a job's script or shell, not a step on each of its nodes: {_SRUN}"


def several_tasks_a_node(tasks: str, nodes: str) -> str:
    return f"this step has {tasks} tasks on {nodes} nodes, not one task on each: {_SRUN}"


def several_agents_a_node(variable: str, number: str, start: str) -> str:
    return f"{number} agents run on this node ({variable}), but one agent starts all workers of a node: {start}"


def no_common_index(tasks: Sequence[str]) -> str:
    return f"pods of several tasks ({', '.join(tasks)}) have no common index: add the pytorch plug-in, which sets RANK"


def backend_too(flag: str, rdzv_backend: str) -> str:
    return f"{flag} already says where the server is: leave {rdzv_backend} out"


def no_scheduler(flag: str, known: Sequence[str]) -> str:
    return (
        f"{flag}: found no variables of a scheduler (known: {', '.join(known)}): give --endpoint HOST:PORT "
        "and --nnodes, or --standalone"
    )


def cannot_start(flag: str, scheduler: str, problem: str) -> str:
    return f"{flag}: {scheduler}: {problem}"


def no_rank(flag: str, scheduler: str, variables: Sequence[str]) -> str:
    return f"{flag}: {scheduler}: cannot find this node's index in {' or '.join(variables)}"


def no_nodes(flag: str, scheduler: str) -> str:
    return f"{flag}: {scheduler} does not say how many nodes there are: give --nnodes"


def no_host(flag: str, scheduler: str, advice: str) -> str:
    return f"{flag}: {scheduler} does not say which node hosts rdzv-server: {advice}"


def not_a_host(flag: str, scheduler: str, source: str, given: str) -> str:
    return f"{flag}: {scheduler}: {source}: {given!r:.80} is not a host name or an address"


# The line of a good start, and its parts. `source` is the variable or flag that gave the fact.


def found(flag: str, scheduler: str, parts: Sequence[str]) -> str:
    return f"{flag}: {scheduler}: {', '.join(parts)}"


def node(rank: str, least: int, most: int, rank_source: str, nodes_source: str) -> str:
    return f"node {rank} of {size_range(least, most)} ({rank_source}, {nodes_source})"


def named(node_id: str, source: str) -> str:
    return f"named {node_id} ({source})"


def workers(number: int | str, source: str) -> str:
    return f"{number} worker{'s' * (number != 1)} ({source})"


def run(run_id: str, source: str) -> str:
    return f"run {run_id} ({source})"


def server(address: str, source: str = "", hosted_here: bool = False) -> str:
    return f"rdzv-server at {address}{source and f' ({source})'}{', hosted here' if hosted_here else ''}"
