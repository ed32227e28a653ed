"""Command lines, and what is made of them."""

from collections.abc import Mapping

import pytest

from node_agent.cli.command_line import read
from node_agent.cli.plan import plan_launch
from node_agent.kernel.config import LaunchPlan, UsageError

HERE = {"PATH": "/usr/bin:/bin"}
"""An environment that says nothing."""


def plan(*argv: str, use_env: bool = True, **environment: str) -> LaunchPlan:
    """Arguments that a command line asks for. `train.py` must stand in the current folder if it names it."""
    environment = {**HERE, **environment}
    return plan_launch(read(argv, environment), environment, use_env=use_env)


def complaint(*argv: str, use_env: bool = True, environment: Mapping[str, str] | None = None) -> str:
    """The one line with which a command line is refused."""
    with pytest.raises(UsageError) as refusal:
        plan(*argv, use_env=use_env, **(environment or {}))
    (line,) = str(refusal.value).splitlines()
    return line
