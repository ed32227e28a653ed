"""Messages about a run that the server, the agents and the operators' tools share."""

from rdzv_protocol.text import clip, count, printable

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


def worker_failed(node_id: str, rank: int, cause: str, error: str, *, singled_out: bool = True) -> str:
    """A failure of a worker, from the fields of `Failure` with these names."""
    who = f"worker rank {rank} on node {node_id}" if singled_out else "the workers"
    return printable(f"{who} failed: {cause}{f': {clip(error, 240)}' if error else ''}")


# A wait, with the time that is left.


def starts_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; starts in {remaining_s:.0f} s"


def gives_up_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; gives up in {remaining_s:.0f} s"


def uncordoned_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; uncordoned in {remaining_s:.0f} s"


def goes_on_in(reason: str, remaining_s: float) -> str:
    return f"{reason}; in {remaining_s:.1f} s"
