"""What the agent tells the person who watches. One fact a line; the server's reasons stand as they are."""

from math import inf

from rdzv_protocol.messages import Assignment, Failure, Finish


def started(assignment: Assignment) -> str:
    """Where this node stands in the round that starts."""
    first, last = assignment.first_rank, assignment.first_rank + assignment.local_world_size - 1
    ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
    return (
        f"round {assignment.round}: node {assignment.group_rank} of {assignment.group_world_size}, "
        f"{ranks} of {assignment.world_size}, master {assignment.master_addr}:{assignment.master_port}, "
        f"restart {assignment.restart_count} of {assignment.max_restarts}"
    )


def failed(failure: Failure) -> str:
    """Which worker ended how."""
    return (
        f"worker rank {failure.rank} (local rank {failure.local_rank}, pid {failure.pid}) "
        f"on node {failure.node_id} failed: {failure.cause}" + (f": {failure.error}" if failure.error else "")
    )


def finished(finish: Finish) -> str:
    """The run's end in one line; `report` has the rest."""
    if not finish.succeeded:
        return f"run failed: {finish.reason}"
    return f"run succeeded: {finish.reason}" + (f"; {restarts(finish)}" if finish.restart_total else "")


def restarts(finish: Finish) -> str:
    """How many there were, and how many of them counted."""
    total, charged = finish.restart_total, finish.charged_restarts
    return f"{total} restart{'s' * (total != 1)}, {charged or 'none'} of them charged"


def no_server_yet(server: str, error: Exception, limit_s: float) -> str:
    """The first answer is still to come."""
    limit = "trying again" if limit_s == inf else f"trying for {limit_s:g} s"
    return f"cannot reach rdzv-server at {server} yet ({error}); {limit}"


def server_lost(server: str, error: Exception, limit_s: float, has_workers: bool) -> str:
    """The server is gone that has answered before."""
    limit = "" if limit_s == inf else f" for {limit_s:g} s"
    return f"lost rdzv-server at {server} ({error}); {'workers keep running, ' * has_workers}trying again{limit}"


def nobody_to_tell(server: str, limit_s: float) -> str:
    """The workers are done while the server is gone."""
    limit = "" if limit_s == inf else f" for {limit_s:g} s"
    return f"all workers exited 0, but rdzv-server at {server} is out of reach: waiting for it{limit}"
