"""Snapshots: the state of a run and of its policies, in place of all the facts that led to it.

`take` splits the state into parts, and `restore` joins them, after the `RunCreated` of the attempt. A snapshot counts
only if its last part has been written (see `record_codec.settled`). It contains no leases: after a restart every agent
gets a fresh one. Runs that have ended have no snapshot.

The fields of the policies' states are stored beside those of the run (ADR 64).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import msgpack

from rdzv_server.core.events import SnapshotPart
from rdzv_server.core.kernel.policy import Policy
from rdzv_server.core.kernel.run import Run, RunState

PART_BYTES = 768
"""Bytes of one part, which is about the size of a join's record: compaction compares numbers of records."""


def take(run: Run) -> Iterator[SnapshotPart]:
    """Yield the parts of a run that has not ended. Agents of one state keep the order in which they entered it."""
    fields = {name: getattr(run, name) for name in RunState.__struct_fields__}
    fields["agents"] = {agent_id: agent for agents in run.by_state.values() for agent_id, agent in agents.items()}
    for state in run.policies.values():
        fields |= {name: getattr(state, name) for name in state.__struct_fields__}
    data = msgpack.encode(fields)
    for begin in range(0, len(data), PART_BYTES):
        end = begin + PART_BYTES
        yield SnapshotPart(data[begin:end], is_last=end >= len(data))


def restore(run: Run, policies: Iterable[Policy[Any, Any]], data: bytes) -> None:
    """Restore the states of a run, which has only its `RunCreated`, and of its policies from a snapshot.

    `data`: the joined parts of the snapshot.
    """
    for policy in policies:
        policy.adopt(msgpack.decode(data, type=policy.State))
    state = msgpack.decode(data, type=RunState)
    for name in RunState.__struct_fields__:
        setattr(run, name, getattr(state, name))
    run.agents = {}
    for agent in state.agents.values():
        run.move(agent, agent.state)
        run.survivors += run.is_survivor(agent)
    for agent_id, leaving in state.leaving.items():
        run.announce_leave(agent_id, leaving)
