"""Messages about workers that cannot be bound to the CPUs near their accelerators."""

NEEDS_ACCELERATORS = "the agent can bind only workers with accelerators to nearby CPUs"


def no_gpu_for_worker(workers: int, gpus: int) -> str:
    return (
        f"no GPU for local rank {gpus}: workers to bind: {workers}, visible GPUs: {gpus}; "
        "start one worker for each GPU, or do not bind workers"
    )


def no_allowed_cpus(node: int, cpus: str, allowed: str) -> str:
    """`cpus`: those of the NUMA node, as the kernel writes them; empty if it has none."""
    return (
        f"this process may not use the CPUs of NUMA node {node} ({cpus or 'it has none'}), only {allowed}; "
        "allow some of them, or do not bind workers"
    )


def too_few_cores(gpus: int, node: int, cores: int) -> str:
    return (
        f"exclusive binding needs a core for each of the {gpus} GPUs of NUMA node {node}; "
        f"this process may use only {cores} there"
    )


NUMA_NODES_UNKNOWN = "the NUMA nodes are unknown"


def node_of_gpu_unknown(gpu: int) -> str:
    return f"the NUMA node of GPU {gpu} is unknown"


def cpus_of_node_unknown(node: int) -> str:
    return f"the CPUs of NUMA node {node} are unknown"


def no_socket(cpu: int) -> str:
    return f"CPU {cpu} has no socket"


def core_unknown(cpu: int) -> str:
    return f"the core of CPU {cpu} is unknown"


def caches_unknown(cpu: int) -> str:
    return f"the caches of CPU {cpu} are unknown"


def cannot_read(unknown: str, path: str, why: str) -> str:
    return f"{unknown}: {path}: {why}"


def no_data_cache(unknown: str, folder: str) -> str:
    return f"{unknown}: {folder} lists no data cache"
