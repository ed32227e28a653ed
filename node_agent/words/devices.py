"""Messages about workers that cannot get the requested accelerators."""

from collections.abc import Mapping

ASKING_TORCH = "asking torch in a separate process which devices there are"
GIVE_A_NUMBER = "give a number of workers, or cpu, to run without these devices"


def no_number_of_workers(asked: str) -> str:
    return f"{asked!r} is not a number of workers: give a number, auto, cpu, gpu or xpu"


def none_seen(label: str, why: str, hiding: Mapping[str, str], advice: str) -> str:
    """`hiding`: the variables that are set and may hide devices."""
    hidden = " and ".join(f"{name}={value!r}" for name, value in hiding.items())
    return f"workers would see no {label}: {why}{f', with {hidden}' if hidden else ''}; {advice}"


def torch_finds_none(torch: str) -> str:
    return f"torch {torch} finds none"


def torch_missing(problem: str) -> str:
    return f"only torch can tell, and {problem}"


def driver_without_torch(driver: str, problem: str) -> str:
    return f"{driver} exists, but {problem}"


def no_pci_addresses(torch: str, device: str) -> str:
    return f"torch {torch} does not report the PCI addresses of its {device} devices"


def torch_cannot_tell(why: str) -> str:
    return f"torch cannot list the devices: {why}"


def torch_too_slow(timeout_s: float) -> str:
    return f"torch did not report its devices within {timeout_s:g} s"
