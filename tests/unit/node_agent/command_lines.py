"""Helpers that parse command lines."""

from collections.abc import Mapping

import pytest

from node_agent.cli.arguments import FLAGS, Arguments
from node_agent.cli.command_line import read
from node_agent.cli.plan import plan_launch
from node_agent.kernel.config import LaunchPlan, UsageError

DEFAULTS = {argument: Arguments().value(argument) for argument in FLAGS}
HERE = {"PATH": "/usr/bin:/bin"}
"""An environment without settings."""


def plan(*argv: str, use_env: bool = True, **environment: str) -> LaunchPlan:
    """Return the plan of a command line. If it names `train.py`, that file must be in the current folder."""
    environment = {**HERE, **environment}
    return plan_launch(read(argv, environment), environment, use_env=use_env)


def complaint(*argv: str, use_env: bool = True, environment: Mapping[str, str] | None = None) -> str:
    """Return the line with which a command line is refused."""
    with pytest.raises(UsageError) as refusal:
        plan(*argv, use_env=use_env, **(environment or {}))
    (line,) = str(refusal.value).splitlines()
    return line
