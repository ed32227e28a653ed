"""Messages for agents about attempts that have ended, or that a server does not know or has no room for."""


def not_known(run_id: str) -> str:
    """An agent's run is unknown."""
    return f"run {run_id} is not known here"


def join_anew(run_id: str, node_id: str) -> str:
    return f"{not_known(run_id)}: node {node_id} must join it anew"


def unknown_run(run_id: str) -> str:
    """An operator's run is unknown."""
    return f"no run {run_id} is known here"


def goes_on(run_id: str, stage: str) -> str:
    """A run cannot be forgotten before its end."""
    return f"run {run_id} goes on ({stage}): stop it first (POST /v1/runs/stop)"


def over_before(run_id: str) -> str:
    """An action changes nothing."""
    return f"run {run_id} was over before"


def outcome_unknown(run_id: str, node_id: str) -> str:
    return (
        f"run {run_id} ended while node {node_id} was away, and how it ended is not remembered here: "
        "the node does not begin it again. To run it again, start its agents again"
    )


def already_succeeded(run_id: str, end: str) -> str:
    return f"run {run_id} has already succeeded: {end}. --rerun starts it again"


def cannot_be_created(run_id: str, error: str) -> str:
    return f"run {run_id} cannot be created after {error}. Report this with the server's log"


def full_of_runs(most: int, then: str) -> str:
    """`then`: message `when_one_has_ended` or `gives_place`."""
    return f"this server holds {most} runs, as many as --max-runs allows, and none of them has ended; {then}"


WHEN_ONE_HAS_ENDED = "there is room when one has"


def full_of_agents(agents: int, most: int, gives: str = "") -> str:
    """`gives`: message `gives_place`; empty if no run gives its place."""
    full = f"this server holds {agents} agents, and --max-agents is {most}"
    return f"{full}; {gives}" if gives else f"{full}: there is room when some have left"


def gives_place(run_id: str, in_s: float) -> str:
    return f"run {run_id} is silent, and gives its place in {in_s:g} s"
