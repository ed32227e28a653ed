"""Messages about runs: which ones there are, and the state of one in a line."""

from collections.abc import Sequence

from rdzv_protocol.text import count
from rdzv_protocol.words.flags import did_you_mean


def start_one(endpoint: str) -> str:
    return f"start one: node-agent --endpoint {endpoint} ... SCRIPT"


def no_runs(endpoint: str) -> str:
    return f"No runs. Start one: node-agent --endpoint {endpoint} ... SCRIPT"


def none_matches(known: int) -> str:
    """`known`: number of known runs."""
    return f"None of the {known} known runs matches." if known != 1 else "The only known run does not match."


def more_runs(hidden: int, phases: str) -> str:
    """`phases`: numbers of these runs by phase."""
    return f"... and {hidden} more: {phases}. rdzvctl runs lists all runs."


def more_lines(hidden: int) -> str:
    return f"... and {count(hidden, 'more line')}: the screen is too small"


def no_pattern(run_id: str) -> str:
    return f"--phase, --health and --node select from all runs, but {run_id} names one run"


NO_RUN = "there is no run"
NONE_AT_ALL = "there are no runs"
WHICH_RUN = "which run?"


def there_are(names: Sequence[str], more: int) -> str:
    """`more`: number of runs that are not named here."""
    return f"there are {', '.join(names)}{f' and {more} more' if more else ''}"


def unsure_of_run(run_id: str, why: Sequence[str]) -> str:
    return f"cannot tell whether run {run_id} exists: {'; '.join(why)}"


def no_such_run(run_id: str, known: Sequence[str]) -> str:
    return f"no run {run_id}{did_you_mean(run_id, known)}"


def next_step(step: str) -> str:
    return f"Next: {step}"
