"""Messages for agents about attempts that have ended, or that a server does not know or has no room for."""

from rdzv_protocol.shell import quoted
from rdzv_protocol.text import count


def unknown_run(run_id: str) -> str:
    return f"this server does not know run {run_id}"


def must_rejoin(run_id: str, node_id: str) -> str:
    return f"{unknown_run(run_id)}: node {node_id} must join it again"


def still_active(run_id: str, stage: str) -> str:
    """A run cannot be forgotten before its end."""
    return f"run {run_id} is still active ({stage}): stop it first (rdzvctl stop {quoted(run_id)})"


def over_before(run_id: str) -> str:
    """An action changes nothing."""
    return f"run {run_id} had already ended"


def outcome_unknown(run_id: str, node_id: str) -> str:
    return (
        f"run {run_id} ended while node {node_id} was away, and this server no longer knows whether it succeeded: "
        "this agent does not start it again. To run it once more, start all of its agents"
    )


def records_are_older(run_id: str) -> str:
    return (
        f"the records of run {run_id} are older than the server's last answer to this agent: an older copy was "
        "restored, or changes were lost"
    )


def already_succeeded(run_id: str, end: str) -> str:
    return f"run {run_id} has already succeeded: {end}. --rerun starts it again"


def was_stopped(run_id: str, end: str) -> str:
    return f"run {run_id} was {end}. To start it again, give --rerun, or forget the run first (rdzvctl forget)"


def cannot_be_created(run_id: str, error: str) -> str:
    return f"run {run_id} cannot be created after {error}. Report this with the server's log"


def full_of_runs(most: int, then: str) -> str:
    """`then`: message `when_one_has_ended` or `gives_place`."""
    return f"this server has {count(most, 'run')}, the limit of --max-runs, and none of them has ended; {then}"


WHEN_ONE_HAS_ENDED = "there will be room when one ends"


def full_of_agents(agents: int, most: int, gives: str = "") -> str:
    """`gives`: message `gives_place`; empty if no run gives its place."""
    full = f"this server has {count(agents, 'agent')}, and --max-agents is {most}"
    return f"{full}; {gives or 'there will be room when some leave'}"


def gives_place(run_id: str, in_s: float) -> str:
    return f"the server does not hear from any agent of run {run_id}, and frees its place in {in_s:g} s"
