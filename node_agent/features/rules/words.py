"""Messages about failures that could not be compared with the user's rules."""


def warning(problem: str) -> str:
    return f"warning: {problem}"


def unmatched(why: str) -> str:
    return f"--fatal-rule and --retry-rule were not applied: matching them {why}"


def too_slow(limit_s: float) -> str:
    """A reason for `unmatched`, like the next ones."""
    return f"took longer than {limit_s:g} s: nested repeats such as (a+)+ can take forever"


def ended(exit_code: int | None, output: str) -> str:
    """`exit_code`: None if it is unknown."""
    return f"failed: {output}" if exit_code is None else f"failed with exit code {exit_code}: {output}"


def not_started(why: str) -> str:
    return f"failed: {why}"
