"""Messages about the events of a run."""


def over_time(run_id: str, attempt: int, begin: str, end: str, lasted: str) -> str:
    """The heading of a run's timeline."""
    which = f", attempt {attempt}; earlier attempts are not shown" if attempt > 1 else ""
    return f"run {run_id}{which}: {begin} to {end}, {lasted}"


def some_events(shown: int, last: int) -> str:
    return f"the latest {shown} of {last} events; --last 0 shows all that the server keeps"
