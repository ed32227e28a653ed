"""What the agent tells the person who watches. One fact a line; the server's reasons stand as they are."""

from protocol.messages import Assignment, Failure, Finish


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
        f"on node {failure.node_id} failed: {failure.cause}"
    )


def finished(finish: Finish) -> list[str]:
    """The run's end; after a failure with its first failing worker and what that wrote last."""
    if finish.succeeded:
        return [f"run succeeded: {finish.reason}"]
    lines = [f"run failed: {finish.reason}"]
    if finish.failure:
        lines.append(f"first failure: {failed(finish.failure)}")
        lines += [f"  | {line}" for line in finish.failure.stderr_tail]
    return lines


def without_countdown(reason: str) -> str:
    """The reason without the time that is left, which its last clause gives."""
    return reason.rpartition("; ")[0] if reason.endswith(" s") else reason
