"""One command line under torchrun and under node-agent: only the program's name differs."""

import asyncio
import atexit
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from node_agent.kernel.processes.ports import ReservedPort
from tests.support import forked
from tests.support.programs import Program

PROGRAMS = Path(__file__).parents[1] / "programs"
TORCHRUN, NODE_AGENT = "torchrun", "node-agent"
MODULES = {TORCHRUN: forked.TORCHRUN, NODE_AGENT: ("node_agent", "node_agent.launch")}
WARM_HELPER = str(Path(__file__).with_name("warm_python_helper.py"))
SLOW_MODULES = "torch._dynamo,torch.distributed.nn"
"""Modules that take long to import, and that programs with torch import first."""
FSDP_MODULES = "torch.distributed.fsdp,torch.distributed.checkpoint,torch.distributed.nn,torch._dynamo"
"""Modules of programs with FSDP."""
DIGITS = f"{SLOW_MODULES},sklearn.datasets"
"""Modules of examples/train_digits.py."""
LONG_S = 100.0
"""Seconds for several imports of torch on a small machine."""


async def start(
    launcher: str,
    words: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    through: Sequence[str] = (),
    legacy: bool = False,
) -> Program:
    """Start one agent. `through`: a command that executes it."""
    if launcher == TORCHRUN and not through:
        return await Program.torchrun(*words, env=env, cwd=cwd, legacy=legacy)
    module = MODULES[launcher][legacy]
    return await Program.start(*through, sys.executable, "-m", module, *words, env=env, cwd=cwd)


async def launch(launcher: str, *nodes: Sequence[str], exit_code: int = 0, **how: Any) -> list[Program]:
    """Start one agent for each node's command line, see `start`, and wait until all have ended."""
    agents = [await start(launcher, words, **how) for words in nodes]
    codes = await asyncio.gather(*(agent.exit_code(LONG_S) for agent in agents))
    assert set(codes) == {exit_code}, (launcher, codes)
    return agents


def warm_python(modules: str, folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of launchers whose workers are forks of a process that has imported `modules`.

    Tests in this process that name the same modules and variables share one such process, so put them in one
    `xdist_group`.
    """
    name = _serve(modules, tuple(sorted(env.items())))
    interpreter = folder / f"python-{name}"
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -SE {WARM_HELPER} "$@"\n')
    interpreter.chmod(0o755)
    return {"PYTHON_EXEC": str(interpreter), "WARM_PYTHON": name}


def warm_torch(folder: Path) -> dict[str, str]:
    """Return the same as `warm_python`, for workers that need only torch."""
    return warm_python(SLOW_MODULES, folder, {"OMP_NUM_THREADS": "1"})


@cache
def _serve(modules: str, env: tuple[tuple[str, str], ...]) -> str:
    """Start a server of `warm_python_helper.py`, which ends with this process. Return its name."""
    name = secrets.token_hex(8)
    command = (sys.executable, "-u", WARM_HELPER, "--serve", name, *modules.split(","))
    server = subprocess.Popen(
        command, env=os.environ | dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    atexit.register(server.communicate)
    assert server.stdout
    server.stdout.readline()  # it listens, and imports meanwhile
    return name


@contextmanager
def free_port() -> Iterator[str]:
    """Yield a port that stays reserved, and at which either launcher can listen."""
    port = ReservedPort()
    try:
        yield str(port.number)
    finally:
        port.release()
