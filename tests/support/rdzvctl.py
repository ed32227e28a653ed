"""The program `rdzvctl`: in a pipe, as scripts use it, and at a terminal."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import forked
from tests.support.cluster import Cluster
from tests.support.programs import Program
from tests.support.terminal import Terminal

RDZVCTL = (sys.executable, "-m", "rdzvctl")
NOWHERE = "/nonexistent"


class Done(NamedTuple):
    """End of a command."""

    code: int
    out: list[str]
    err: list[str]

    @property
    def json(self) -> Any:
        """Return the document that it wrote."""
        assert self.code == 0, self.err
        return json.loads("\n".join(self.out))

    @property
    def lines(self) -> list[str]:
        """Return the output of a command that succeeded and wrote nothing to stderr."""
        assert (self.code, self.err) == (0, [])
        return self.out


def environment(endpoint: str = "", **more: str) -> dict[str, str]:
    """Return the environment of a command that does not read the configuration of the user who runs the tests."""
    return {"XDG_CONFIG_HOME": NOWHERE, "RDZV_ENDPOINT": endpoint, "RDZV_TOKEN_FILE": "", **more}


async def rdzvctl(*words: str | Path, endpoint: str = "", env: Mapping[str, str] | None = None) -> Done:
    """Run a command whose output is a pipe."""
    env = {**environment(endpoint), **(env or {})}
    program = await Program.python(forked.RDZVCTL, forked.RDZVCTL[0], *map(str, words), env=env)
    code = await program.exit_code()
    assert not any("Traceback" in line for line in program.err), program.err
    return Done(code, program.out, program.err)


def terminal(cluster: Cluster, *words: str, **how: int) -> Terminal:
    """Return a terminal in which `rdzvctl` runs with these arguments, for this cluster."""
    return Terminal(*RDZVCTL, *words, env=environment(cluster.endpoint), **how)
