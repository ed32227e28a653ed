"""Messages about a run that the server, the agents and the operators' tools share."""

from collections.abc import Mapping

from rdzv_protocol.text import NextStep, age, clip, count, length, printable

# Events.


def opened(reason: str) -> str:
    return f"opened: {reason}"


def started(nodes: int | None, reason: str) -> str:
    return f"runs on {count(nodes)}: {reason}"


def succeeded(reason: str) -> str:
    return f"run succeeded: {reason}"


def failed(reason: str) -> str:
    return f"run failed: {reason}"


def by_operator(what: str, by: str) -> str:
    return f"{what} (by {by})"


def reported_error(rank: int, error: str) -> str:
    """Part of a sentence about a worker that exited 0."""
    return f"worker rank {rank} reported an error: {error}"


def exited_0_with_error(rank: int, error: str) -> str:
    """Warning about a success that may be none."""
    return (
        f"worker rank {rank} exited 0, but reported an error: {error}. "
        "If its work is not done, let the script exit with another code"
    )


def worker_failed(node_id: str, rank: int, cause: str, error: str, *, singled_out: bool = True) -> str:
    """A failure of a worker, from the fields of `Failure` with these names."""
    who = f"worker rank {rank} on node {node_id}" if singled_out else "the workers"
    return printable(f"{who} failed: {cause}{f': {clip(error, 240)}' if error else ''}")


def read_output(run_id: str, rank: int) -> NextStep:
    """`run_id`: quoted for a shell."""
    return NextStep("Read the worker's output:", f"rdzvctl logs {run_id} {rank}")


def correct_agent(node_id: str, why: str) -> str:
    """`why`: phrase about why the agent may not join, such as `--nnodes 3 instead of 2`."""
    return f"Correct the command of node {node_id}'s agent, and start it again (refused: {why})."


def read_console(node_id: str) -> str:
    """Of a worker whose output is not in files."""
    return (
        f"Read the worker's output on the console of node {node_id}'s agent. To keep output in files, too, start the "
        "agents with -t 3 --log-dir DIR."
    )


# A wait, with the time that is left.


def starts_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; starts in {remaining_s:.0f} s"


def gives_up_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; gives up in {remaining_s:.0f} s"


def uncordoned_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; uncordoned in {age(remaining_s)}"


def continues_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; in {remaining_s:.1f} s"


# Costs of restarts.


SHOWN_S = 0.05
"""Least seconds of a part that is shown."""
LARGEST = 3
"""Number of parts that the sentence about a single restart shows."""


def restarts_took(
    restarts: int, followed: int, seconds: Mapping[str, float | None], kept_steps: int = 0, repeated_steps: int = 0
) -> str:
    """Time that restarts took, from the fields of `RestartCosts`. A part that is None is in the next known one."""
    parts = [f"{length(spent)} {names}" for names, spent in _parts(seconds)]
    told = f"{count(restarts, 'restart')} took {_whole(seconds)} until {_until(followed > 0)}"
    told += f": {', '.join(parts)}" if parts else ""
    if followed < restarts:
        after = f"after {restarts - followed} of them " if followed else ""
        told += f"; {after}the workers reported no progress, so the time from their start is unknown"
    if kept_steps:
        told += f"; kept {count(kept_steps, 'step')} after the last checkpoint, repeated {repeated_steps}"
    elif repeated_steps:
        told += f"; repeated {count(repeated_steps, 'step')}"
    return told


def last_restart_took(round: int, seconds: Mapping[str, float | None]) -> str:
    """Time that the restart before this round took, and its largest parts, from the fields of `RestartCost`."""
    largest = sorted(_parts(seconds), key=lambda part: part[1], reverse=True)[:LARGEST]
    parts = [f"{length(spent)} {names}" for names, spent in largest]
    until = _until(seconds.get("first_step_s") is not None)
    told = f"the last restart, before round {round}, took {_whole(seconds)} until {until}"
    return f"{told}; largest parts: {', '.join(parts)}" if parts else told


def _until(is_followed: bool) -> str:
    return "the next progress" if is_followed else "new workers started"


def _whole(seconds: Mapping[str, float | None]) -> str:
    return length(sum(spent or 0.0 for spent in seconds.values()))


def _parts(seconds: Mapping[str, float | None]) -> list[tuple[str, float]]:
    """Return the name and seconds of each part that is shown. Unknown parts are named with the next known one."""
    parts, unknown = [], []
    for field, spent in seconds.items():
        unknown.append(field.removesuffix("_s").replace("_", " "))
        if spent is not None:
            parts += [(_listed(unknown), spent)] if spent >= SHOWN_S else []
            unknown = []
    return parts


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
