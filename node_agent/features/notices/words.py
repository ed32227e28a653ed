"""Messages about notices to the workers."""

from collections.abc import Collection


def signal_without_notice(source: str) -> str:
    """For `--notice-signal` without a notice, like the next one. `source`: the flag or variable."""
    return f"{source} needs --notice-timeout S or --scale-up on-notice"


def signal_that_stops(source: str, signal_name: str) -> str:
    return f"{source} {signal_name}: this signal stops workers; choose another one, such as SIGUSR2"


def shortened(source: str, asked_s: float, given_s: float, shutdown_s: float, enough_s: float) -> str:
    """For a `--shutdown-timeout` that leaves less time than `--notice-timeout` needs."""
    return (
        f"{source} {asked_s:g}: when this node leaves, its workers get only {given_s:g} s, four fifths of "
        f"--shutdown-timeout {shutdown_s:g}; set --shutdown-timeout {enough_s:g} to give them all {asked_s:g} s"
    )


def no_folder(path: str) -> str:
    return f"cannot deliver notices to the workers: could not make {path}"


def not_given(why: str) -> str:
    return f"could not deliver the notice to the workers: {why}"


def signal_not_handled(signal_name: str, local_ranks: Collection[int]) -> str:
    """For workers that still import their modules, or that never handle the signal."""
    which = f"local rank{'s' if len(local_ranks) > 1 else ''} {', '.join(map(str, local_ranks))}"
    return f"{signal_name} would end a worker that does not handle it: {which} will get it after setting a handler"


def none_listens(reason: str) -> str:
    return (
        f"{reason}: no worker of this node listens to notices, so the agent waits for none. A script listens if it "
        "calls node_agent.notice(), or handles the signal of --notice-signal"
    )


def saved(reason: str, acknowledged: int, listening: int, after_s: float) -> str:
    return f"{reason}: {acknowledged} of {listening} listening workers have saved after {after_s:.1f} s"
