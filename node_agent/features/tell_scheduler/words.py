"""Messages of an agent that tells a scheduler about its run, and what it tells."""

from collections.abc import Iterable

from rdzv_protocol.text import count


def not_a_scheduler(kinds: Iterable[str], given: str) -> str:
    """For a wrong value of `--tell-scheduler`."""
    return f"expected slurm, trainer or kubernetes=KIND/NAME with the kind {', '.join(kinds)}, not {given!r:.80}"


def not_inside(scheduler: str, missing: str) -> str:
    """`missing`: the variable or file that the scheduler would have provided."""
    return f"--tell-scheduler has no effect: {scheduler} has not provided {missing}"


def not_told(where: str, why: str) -> str:
    return f"could not tell {where} about the run ({why}); the run continues, and the agent will try again"


def told_again(where: str) -> str:
    return f"told {where} about the run again"


SLURM = "Slurm"
KUBERNETES = "Kubernetes"
TRAINER = "Kubeflow Trainer"


def annotations_of(kind: str, name: str, namespace: str) -> str:
    return f"the API server of Kubernetes at {kind} {name} in namespace {namespace}"


def comment_of(job: str) -> str:
    return f"Slurm at job {job}"


def took_too_long(limit_s: float) -> str:
    return f"it took more than {limit_s:g} s"


def command_failed(exit_code: int | None, output: str) -> str:
    """For scontrol. `exit_code`: None if it took too long."""
    if exit_code is None:
        return "scontrol took too long"
    return f"scontrol exited with {exit_code}{': ' if output else ''}{output}"


def wrong_status(status: int, message: str) -> str:
    return f"HTTP status {status}{': ' if message else ''}{message}"


def run_in_short(
    phase: str,
    nodes: int,
    step: int | None,
    checkpoint_step: int | None,
    restarts: int,
    charged: int,
    most: int,
    health: str,
    sentence: str,
) -> str:
    """The run in one line. `charged`, `most`: of `--max-restarts`. `sentence`: about the health, or the phase."""
    steps = "" if step is None else f", {progress(step, checkpoint_step)}"
    return f"{phase} on {count(nodes)}{steps}, {restarts_of(restarts, charged, most)}, health {health}: {sentence}"


def progress(step: int, checkpoint_step: int | None) -> str:
    return f"step {step}" + ("" if checkpoint_step is None else f" (checkpoint {checkpoint_step})")


def restarts_of(restarts: int, charged: int, most: int) -> str:
    return f"{count(restarts, 'restart')} ({charged} of {most} charged)"
