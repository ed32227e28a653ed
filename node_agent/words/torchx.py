"""Refusals of the TorchX components."""

from collections.abc import Sequence

SCRIPT_AND_MODULE = "give either --script or -m, not both"


def not_a_backend(backends: Sequence[str], given: str) -> str:
    return f"--rdzv_backend must be {' or '.join(backends)}, not {given}; see --server"


def not_a_server(given: str) -> str:
    return f"--server must be replica, role or HOST:PORT, not {given}"


def other_job_scripts(line: str) -> str:
    return f"this version of TorchX writes other job scripts for Slurm: no {line!r}"
