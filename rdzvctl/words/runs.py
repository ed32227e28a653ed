"""Messages about runs: which ones there are, and the state of one in a line."""

from collections.abc import Mapping, Sequence

from rdzv_protocol.text import age, count, size_range
from rdzv_protocol.words.flags import did_you_mean

from rdzvctl.words.nodes import listed


def start_one(endpoint: str) -> str:
    return f"start one: node-agent --endpoint {endpoint} ... SCRIPT"


def no_runs(endpoint: str) -> str:
    return f"No runs. Start one: node-agent --endpoint {endpoint} ... SCRIPT"


def none_matches(known: int) -> str:
    """`known`: number of known runs."""
    return f"None of the {known} known runs matches." if known != 1 else "The only known run does not match."


def more_runs(hidden: int, phases: str) -> str:
    """`phases`: numbers of these runs by phase, and of troubled runs by health."""
    return f"... and {hidden} more: {phases}. rdzvctl runs lists all runs."


def by_phase(numbers: Mapping[str, int]) -> str:
    """`numbers`: numbers of runs by phase or health."""
    return ", ".join(f"{number} {phase}" for phase, number in numbers.items())


def more_lines(hidden: int) -> str:
    return f"... and {count(hidden, 'more line')}: the screen is too small"


def no_pattern(run_id: str) -> str:
    return f"--phase, --health and --node select from all runs, but {run_id} names one run"


NO_RUN = "there is no run"
NONE_AT_ALL = "there are no runs"
WHICH_RUN = "which run?"


def known_runs(names: Sequence[str], more: int) -> str:
    """`more`: number of runs that are not named here."""
    return f"known runs: {listed(names, more)}"


def name_one(names: Sequence[str], more: int) -> str:
    """`more`: number of runs that are not named here."""
    return f"name one of them: {listed(names, more)}"


def unsure_of_run(run_id: str, why: Sequence[str]) -> str:
    return f"cannot tell whether run {run_id} exists: {'; '.join(why)}"


def no_such_run(run_id: str, known: Sequence[str]) -> str:
    return f"no run {run_id}{did_you_mean(run_id, known)}"


# The state of a run.


def named(run_id: str, attempt: int) -> str:
    return f"{run_id} (attempt {attempt})" if attempt > 1 else run_id


def state(phase: str, since_s: float, reason: str) -> str:
    return f"{phase} for {age(since_s)}: {reason}"


def ended(phase: str, ago_s: float, reason: str) -> str:
    """The state of a run that is over."""
    return f"{phase} {age(ago_s)} ago: {reason}"


def trouble(health: str, since_s: float, sentence: str, others: Sequence[str]) -> str:
    """`health`: empty where the reader has it already. `others`: what else is wrong, as states of health."""
    return "; also ".join([f"{health and f'{health} '}for {age(since_s)}: {sentence}", *others])


def one_line(run_id: str, state: str, trouble: str) -> str:
    """`trouble`: empty if the run has none, or if its state says what is wrong."""
    return f"run {run_id}: {state}{trouble and f'; {trouble}'}"


def node_counts(present: int, standbys: int, low: int, high: int) -> str:
    """Number of participating nodes and of wanted nodes."""
    return f"{present}{f'+{standbys}' if standbys else ''} of {size_range(low, high)}"


# Next steps of a person for runs.


def next_step(step: str) -> str:
    return f"Next: {step}"


def needs_person(run_id: str, what: str, step: str) -> str:
    """`what`: the run's trouble, or else its state."""
    return f"{run_id}: {what}. {next_step(step)}"


def needs_nothing(well: int, ended: Mapping[str, int], *, named_failed: int, are_all_well: bool) -> str:
    """`well`: number of active runs that need nothing. `ended`: numbers of ended runs by phase, without the
    `named_failed` failed ones that are named; those that an operator has stopped count apart. Empty if there is nothing
    to say."""
    told = f"{count(well, 'run')} {'needs' if well == 1 else 'need'} nothing" if well else ""
    if are_all_well:
        told = "No active run needs anything" if named_failed else "No run needs anything"
    named = {"failed": "more failed" if named_failed else "failed"}
    parts = filter(None, [told, *(f"{number} {named.get(phase, phase)}" for phase, number in ended.items())])
    return (text := "; ".join(parts)) and f"{text}."
