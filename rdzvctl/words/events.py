"""Messages about the events of a run, and about the run over time."""

from rdzv_protocol.text import age


def event(at: str, number: int, attempt: int, round: int, sentence: str) -> str:
    return f"{at} #{number} {f'attempt {attempt}, ' if attempt > 1 else ''}round {round}: {sentence}"


def of_unknown_kind(kind: str, reason: str, by: str) -> str:
    """An event of a newer server. `by`: empty if the server itself caused it."""
    return f"{kind}: {reason}{by and f' (by {by})'}"


def some_events(shown: int, last: int) -> str:
    return f"the latest {shown} of {last} events; --last 0 shows all that the server keeps"


# A run over time.


def over_time(run_id: str, attempt: int, begin: str, end: str, lasted_s: float) -> str:
    """The heading of a run's timeline."""
    which = f", attempt {attempt}; earlier attempts are not shown" if attempt > 1 else ""
    return f"run {run_id}{which}: {begin} to {end}, {age(lasted_s)}"


def up_to(steps_per_s: float) -> str:
    """The largest number of steps a second."""
    return f"up to {steps_per_s:.3g}"


def mark(kind: str, times: int, until: str) -> str:
    """`until`: when the last of them ended; empty if they lasted less than a second."""
    return f"{f'{times} × ' if times > 1 else ''}{kind}{until and f', until {until}'}"


def first_node(node_id: str) -> str:
    return f"{node_id} first"
