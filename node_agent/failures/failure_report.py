"""What a failed agent leaves behind: the final report on the console, and the error file that its starter asked for."""

import os
import time
from collections.abc import Callable, Mapping, Sequence

from rdzv_protocol.messages import Failure, Finish

from node_agent.config import AgentConfig
from node_agent.core.command import Command
from node_agent.core.effects import LeaveEvidence
from node_agent.failures import error_file
from node_agent.failures.report import Line, Mark, report
from node_agent.output.console import ERR, Console

_COLOURS = {Mark.TITLE: "1;31", Mark.HEADING: "1", Mark.ERROR: "31", Mark.HINT: "36", Mark.RULE: "2"}
"""Of the terminal's own, so that they suit a dark and a light one."""


def show_report(finish: Finish, config: AgentConfig, logs: str, console: Console) -> None:
    """Write the box on stderr, in one piece. `logs`: the folder of this node's log files."""
    advice = [f"Logs of node {config.node_id}: {logs}"] if logs else []
    lines = report(finish, name_of(config.command), local_time, advice)
    console.write(ERR, paint(lines, is_coloured=wants_colour(config.environment, ERR)))


def write_error_file(effect: LeaveEvidence, config: AgentConfig, recorded: str, say: Callable[[str], None]) -> None:
    """Write what ended the run into the agent's own TORCHELASTIC_ERROR_FILE, if it has one. `recorded`: the error file
    of the failed worker, if that was this node's.
    """
    path = config.environment.get(error_file.VARIABLE)
    if not path:
        return
    failure = failure_of(effect)
    if failure:
        what = error_file.copy(recorded, failure.exit_code) or error_file.content_of(failure)
    else:
        what = error_file.content(effect.error)
    try:
        error_file.write(path, what)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        say(f"cannot write the error file {path} ({error_file.VARIABLE}): {reason}")


def failure_of(effect: LeaveEvidence) -> Failure | None:
    """The failure that a scheduler is told: what ended the run, as torchrun tells it."""
    return (effect.finish.failure or effect.finish.first_failure) if effect.finish else None


def name_of(command: Command) -> str:
    """What the workers execute, for a title: the script or the module, not its interpreter."""
    interpreter, *rest = command.program or ("",)
    return next((part for part in rest if not part.startswith("-")), interpreter)


def paint(lines: Sequence[Line], *, is_coloured: bool) -> bytes:
    """The lines as bytes, coloured for a terminal."""
    colours = _COLOURS if is_coloured else {}
    texts = (f"\x1b[{colours[mark]}m{text}\x1b[0m" if mark in colours else text for mark, text in lines)
    return "".join(f"{text}\n" for text in texts).encode(errors="backslashreplace")


def wants_colour(environment: Mapping[str, str], descriptor: int) -> bool:
    """Whether that is a terminal, and nobody objects (https://no-color.org)."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb" and os.isatty(descriptor)


def local_time(at: float) -> str:
    """As torchrun writes it: 2026-08-01_12:00:00."""
    return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(at))
