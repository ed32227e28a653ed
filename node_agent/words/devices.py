"""What a person is told when workers cannot get the accelerators, or the CPUs near them, that were asked for."""

from collections.abc import Mapping

ASKING_TORCH = "asking torch what devices there are, in a process of its own"
GIVE_A_NUMBER = "give a number of workers, or cpu, to do without"
BINDING_NEEDS_ACCELERATORS = "only workers with accelerators can be bound to the CPUs near them"


def no_number_of_workers(asked: str) -> str:
    return f"{asked!r} is not a number of workers: give a number, auto, cpu, gpu or xpu"


def none_seen(label: str, why: str, hiding: Mapping[str, str], advice: str) -> str:
    """`hiding`: the variables that are set and may hide devices."""
    hidden = " and ".join(f"{name}={value!r}" for name, value in hiding.items())
    return f"workers would see no {label}: {why}{f', with {hidden}' if hidden else ''}; {advice}"


def torch_finds_none(torch: str) -> str:
    return f"torch {torch} finds none"


def torch_missing(problem: str) -> str:
    return f"torch is asked, and {problem}"


def driver_without_torch(driver: str, problem: str) -> str:
    return f"{driver} is there, and {problem}"


def no_pci_addresses(torch: str, device: str) -> str:
    return f"torch {torch} does not tell where on the PCI bus its {device} devices are"


def torch_cannot_tell(why: str) -> str:
    return f"torch cannot tell what devices there are: {why}"


def torch_too_slow(timeout_s: float) -> str:
    return f"torch did not report its devices within {timeout_s:g} s"


# Binding workers to CPUs.


def no_gpu_for_worker(workers: int, gpus: int) -> str:
    return (
        f"no GPU for local rank {gpus}: workers to bind: {workers}, visible GPUs: {gpus}; "
        "start one worker for each GPU, or bind none"
    )


def no_allowed_cpus(node: int, cpus: str, allowed: str) -> str:
    """`cpus`: those of the NUMA node, as the kernel writes them; empty if it has none."""
    return (
        f"this process may use none of the CPUs of NUMA node {node} ({cpus or 'it has none'}), "
        f"only {allowed}; allow some of them, or bind no worker"
    )


def too_few_cores(gpus: int, node: int, cores: int) -> str:
    return (
        f"exclusive binding needs a core for each of the {gpus} GPUs of NUMA node {node}; "
        f"this process may use {cores} there"
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
    return f"{unknown}: {folder} shows none for data"
