"""A run as it stands, in place of all the facts that led to it.

`take` gives it in parts, and `restore` makes it of them again, after the `RunCreated` of the attempt. Only what has
been written down to the last part counts (see `record_codec.settled`). Leases are not in it: after a restart every
agent gets a fresh one. Nor do runs that have ended have one.
"""

from collections.abc import Iterator

from msgspec import msgpack

from rdzv_server.core.events import SnapshotPart
from rdzv_server.core.run import Run, RunState

PART_BYTES = 768
"""As text, about as much as the record of a join: compaction compares numbers of records."""


def take(run: Run) -> Iterator[SnapshotPart]:
    """The parts of a run, which has not ended. Agents of one state stand in the order in which they got into it."""
    fields = {name: getattr(run, name) for name in RunState.__struct_fields__}
    fields["agents"] = {agent_id: agent for agents in run.by_state.values() for agent_id, agent in agents.items()}
    data = msgpack.encode(RunState(**fields))
    for begin in range(0, len(data), PART_BYTES):
        end = begin + PART_BYTES
        yield SnapshotPart(data[begin:end], is_last=end >= len(data))


def restore(run: Run, data: bytes) -> None:
    """Give a run, which is as `RunCreated` left it, the state whose parts these are."""
    state = msgpack.decode(data, type=RunState)
    # A snapshot of a server that counted neither has neither.
    event_number = max(run.event_number, state.event_number)
    time = run.time if state.time.since < run.created_at else state.time
    for name in RunState.__struct_fields__:
        setattr(run, name, getattr(state, name))
    run.event_number, run.time = event_number, time
    run.agents = {}
    for agent in state.agents.values():
        run.move(agent, agent.state)
        run.survivors += run.is_survivor(agent)
