"""Time namespaces: processes in one have a monotonic clock of their own."""

import subprocess
from functools import cache

import pytest


def in_time_namespace(ahead_s: int, *command: str) -> tuple[str, ...]:
    """Return a command that runs this one with a monotonic clock that is `ahead_s` seconds ahead."""
    return ("unshare", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child", *command)


@cache
def why_none() -> str:
    """Return why no time namespace can be made here, empty if one can."""
    try:
        tried = subprocess.run(in_time_namespace(1, "true"), capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return tried.stderr.strip() if tried.returncode else ""


need_time_namespaces = pytest.mark.skipif(bool(why_none()), reason=f"no time namespaces: {why_none()}")
