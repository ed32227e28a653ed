"""Lines for the person who watches: one fact a line; the server's reasons stand as they are."""

from math import inf

from msgspec.structs import asdict
from rdzv_protocol.flag_values import address
from rdzv_protocol.messages import Assignment, Drain, Failure, Finish, RunningTime, RunTime

from node_agent.core.events import Signalled, Suspected


def started(assignment: Assignment) -> str:
    """Place of this node in the round that starts."""
    first, last = assignment.ranks[0], assignment.ranks[-1]
    ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
    restart_count, most = assignment.restart_count, assignment.max_restarts
    of_most = f" of {most}" if restart_count <= most else ""  # more than that: the budget forgets old ones
    return (
        f"round {assignment.round}: node {assignment.group_rank} of {assignment.group_world_size}, "
        f"{ranks} of {assignment.world_size}, master {address(assignment.master_addr, assignment.master_port)}, "
        f"restart {restart_count}{of_most}"
    )


def failed(failure: Failure) -> str:
    """Failed worker, and how it ended."""
    return (
        f"worker rank {failure.rank} (local rank {failure.local_rank}, pid {failure.pid}) "
        f"on node {failure.node_id} failed: {failure.cause}" + (f": {failure.error}" if failure.error else "")
    )


def suspected(event: Suspected) -> str:
    """Workers that seem to hang, and why; or that they do not any more."""
    if not event.ranks:
        return f"the workers go on: {event.source}"
    shown = f"rank {event.ranks[0]}" if len(event.ranks) == 1 else f"{len(event.ranks)} ranks"
    return f"{shown} may hang: {event.reason}"


def asked_to_leave(signalled: Signalled) -> str:
    """Reason why the agent leaves its run, for people: the one that came with the signal, else the signal's name."""
    return signalled.reason or signalled.name


def left_by(signalled: Signalled) -> str:
    """Error of an agent that was told to leave, as torchrun says it."""
    return f"SignalException: the agent got {signalled.name}" if not signalled.reason else signalled.reason


def drained(drain: Drain, *, has_workers: bool) -> str:
    """Line of an agent whose node is wanted empty."""
    grace = f"; its workers have {drain.remaining_s:.0f} s" if has_workers else ""
    return f"leaving the run: {drain.reason}{grace}"


def finished(finish: Finish) -> str:
    """End of the run in one line; `report` has the rest."""
    if not finish.succeeded:
        return f"run failed: {finish.reason}"
    return f"run succeeded: {finish.reason}" + (f"; {restarts(finish)}" if finish.restart_total else "")


def account(time: RunTime | RunningTime) -> str:
    """Line about the time of a run that went into training, restarts and the rest, and its effective part if known."""
    parts = {name.removesuffix("_s"): seconds for name, seconds in asdict(time).items() if name != "ettr"}
    told = ", ".join(f"{_length(seconds)} {part}" for part, seconds in parts.items() if seconds)
    ratio = f"; effective training time ratio {time.ettr:.3f}" if isinstance(time, RunTime) else ""
    return f"the run took {_length(sum(parts.values()))}: {told}{ratio}"


def _length(seconds: float) -> str:
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.1f} s"


def restarts(finish: Finish) -> str:
    """Number of restarts, and of those that were charged."""
    total, charged = finish.restart_total, finish.charged_restarts
    return f"{total} restart{'s' * (total != 1)}, {charged or 'none'} of them charged"


def not_told_of_leave(server: str, within_s: float) -> str:
    """Last word of an agent that left while its server was out of reach."""
    return (
        f"could not tell rdzv-server at {server} within {within_s:g} s that this node leaves: it will be missed instead"
    )


def limit(limit_s: float) -> str:
    """Words for how long the agent goes on with something; none: for ever."""
    return "" if limit_s == inf else f" for {limit_s:g} s"
