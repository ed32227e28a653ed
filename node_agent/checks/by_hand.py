"""Checks of this node by hand: `node-agent --check NAME,NAME --check-only`."""

import subprocess

from rdzv_protocol.exit_codes import ExitCode

from node_agent.checks.pre_join import built_in
from node_agent.config import AgentConfig


def run(config: AgentConfig) -> ExitCode:
    """Run the checks, which write a table on stdout, and say what follows from it."""
    check = config.node_check
    assert check
    commands = [built_in(check)] if check.built_in else []
    commands += [("/bin/sh", "-c", check.command)] if check.command else []
    is_unfit = False
    for command in commands:
        try:
            code = subprocess.run(command, env=config.environment, timeout=check.limit_s).returncode
        except subprocess.TimeoutExpired:
            print(f"node-agent: a check took more than {check.limit_s:g} s")  # noqa: T201
            code = ExitCode.NODE_UNFIT.value
        is_unfit |= code == ExitCode.NODE_UNFIT
        if code not in (0, ExitCode.NODE_UNFIT):
            print(f"node-agent: a check is broken, which says nothing about this node: exit code {code}")  # noqa: T201
    print(f"node {config.join.node_id} is {'unfit: replace it' if is_unfit else 'fit'}")  # noqa: T201
    return ExitCode.NODE_UNFIT if is_unfit else ExitCode.SUCCEEDED
