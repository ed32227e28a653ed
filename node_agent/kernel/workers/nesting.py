"""Nested runs: tells a launcher that a worker starts which runs it is part of, and which variables to leave out.

An agent gives some variables to one worker only, such as a socket's path. A launcher that the worker starts inherits
them. If it passed the same path to all of its own workers, they would fail. So it leaves these variables out, unless
their values have changed since. It also must not join a run that it is part of, because both would wait forever.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, json
from rdzv_protocol.flag_values import address

from node_agent.kernel.config import Endpoint
from node_agent.kernel.environment import TIMER_FILE

RUNS = "NODE_AGENT_RUNS"
"""Variable of every worker, as JSON: the runs that it is part of, and the variables that only it has."""
RUN_ID = "TORCHELASTIC_RUN_ID"
_TORCHRUNS_TIMER_FILE = r"/tmp/watchdog_timer_[0-9a-f-]{36}"


class Outer(Struct, frozen=True):
    """Variables that a process inherits from the agents above it."""

    runs: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Ids of the runs, the innermost last, each with the addresses of its servers."""
    given: dict[str, str] = {}
    """Variables that the innermost agent has made for one worker."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Outer":
        """Read the variable. A part that cannot be read is ignored."""
        if inherited := environment.get(RUNS):
            with suppress(ValueError):
                return json.decode(inherited, type=cls)
        return cls()


def variables(
    environment: Mapping[str, str], run_id: str, servers: Sequence[Endpoint], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the variable for a worker. `environment`: the agent's own. `given`: the variables made for this worker."""
    own = (run_id, tuple(address(*server) for server in servers))
    shown = {name: _text(value) for name, value in given.items()}
    return {RUNS: json.encode(Outer((*Outer.of(environment).runs, own), shown)).decode()}


def without_outer(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that an outer agent or torchrun has made for its worker."""
    given = dict(Outer.of(environment).given)
    timer = environment.get(TIMER_FILE, "")
    if RUN_ID in environment and re.fullmatch(_TORCHRUNS_TIMER_FILE, timer):
        given[TIMER_FILE] = timer
    return {name: value for name, value in environment.items() if given.get(name) != _text(value)}


def _text(value: str) -> str:
    """Return a variable's value as text. A path, such as one in TMPDIR, may have bytes that are not UTF-8."""
    return os.fsencode(value).decode(errors="backslashreplace")


def is_part_of(environment: Mapping[str, str], run_id: str, servers: Sequence[Endpoint], *, is_inherited: bool) -> bool:
    """Return whether this process is part of the run with this id at one of these servers.

    torchrun gives its workers the run's id, but not the rendezvous address. In that case only an inherited address can
    match.
    """
    runs, addresses = Outer.of(environment).runs, {address(*server) for server in servers}
    if any(each == run_id and addresses & set(theirs) for each, theirs in runs):
        return True
    is_torchruns = not runs or runs[-1][0] != environment.get(RUN_ID)
    return is_inherited and is_torchruns and environment.get(RUN_ID) == run_id
