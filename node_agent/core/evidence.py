"""What a worker's exit status means, in words."""

from collections.abc import Mapping


def cause_of(exit_code: int, signal_names: Mapping[int, str]) -> str:
    """The exit code or signal in words; negative codes are signals, as in `subprocess`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal_names.get(-exit_code, "unknown")
    hint = _HINTS.get(name)
    return f"signal {-exit_code} ({name})" + (f": {hint}" if hint else "")


_HINTS = {
    "SIGKILL": "killed from outside, often for lack of memory",
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error, often /dev/shm is full",
    "SIGABRT": "aborted",
}
