"""Node checks without a launch, for people: `--check-only`."""

import subprocess

from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.standard_output import say

from node_agent.features.checks import NodeChecks, words
from node_agent.features.checks.pre_join import commands
from node_agent.kernel import early_signals
from node_agent.kernel.config import PROGRAM, AgentConfig


def run_checks_only(options: NodeChecks, config: AgentConfig) -> ExitCode:
    """Run the checks, which print a table on stdout, and say what follows from it."""
    early_signals.release()
    is_unfit = False
    for _, command in commands(options, is_brief=False):
        try:
            code = subprocess.run(command, env=config.environment, timeout=options.pre_join_check_timeout).returncode
        except subprocess.TimeoutExpired:
            say(words.check_too_slow(options.pre_join_check_timeout), PROGRAM)
            code = ExitCode.NODE_UNFIT.value
        is_unfit |= code == ExitCode.NODE_UNFIT
        if code not in (0, ExitCode.NODE_UNFIT):
            say(words.check_broken(code), PROGRAM)
    say(words.verdict(config.join.node_id, is_unfit), PROGRAM)
    return ExitCode.NODE_UNFIT if is_unfit else ExitCode.SUCCEEDED
