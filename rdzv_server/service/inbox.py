"""Inbox of the driver: events that wait to be applied, in which runs take turns.

While the store cannot write, the driver applies nothing, and every agent asks repeatedly. So the inbox bounds the
waiting events by the number of agents, however often they ask:

- An agent has one pending sign of life. A later one replaces it, and so does the loss of its connection.
- A repeated request with the same content waits for the result of the first.
- If the caller of an operator's query has gone, the inbox drops the query, since no one else reads the answer.
  Reports, leaves and actions stay: they have happened even if their senders are gone. Joins stay as well. Otherwise, if
  a burst of joins took longer than agents wait, the inbox would drop each one shortly before its turn, again and again.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from msgspec.structs import replace

from rdzv_server.core.effects import AnswerOperator
from rdzv_server.core.events import (
    AgentDisconnected,
    DescriptionAsked,
    Event,
    LeaseRenewed,
    LogAsked,
    NodeJoined,
)
from rdzv_server.core.kernel.machine import RunMachine
from rdzv_server.core.policies.hangs.examination import StacksAsked

Result = RunMachine | AnswerOperator | None
"""Result of an event: the answer to an operator's action, else the machine that handled it; None if none did."""
Done = asyncio.Future[Result]
OperatorQuery = LogAsked | DescriptionAsked | StacksAsked
"""Operators' queries to agents. A query is dropped if no caller waits for its answer any more."""
_SIGNS = LeaseRenewed | AgentDisconnected
"""Signs of an agent: only the latest one counts."""
_Key = tuple[str, str, type[Event]]
"""Key of an agent's latest pending event of a kind: run, agent, and type of event."""


class Pending:
    """Event that waits to be applied, and the callers that wait for its result."""

    __slots__ = ("arrived_at", "callers", "event", "key", "run_id", "waits")

    def __init__(self, run_id: str | None, event: Event, key: _Key | None, arrived_at: float) -> None:
        self.arrived_at = arrived_at
        self.waits = True
        self.run_id = run_id
        self.event = event
        self.key = key
        self.callers: list[Done] = []

    def takes(self, event: Event) -> bool:
        """Let this event stand for a later one that repeats it, or is a newer sign of the agent.

        Return whether it does.
        """
        if isinstance(self.event, _SIGNS):
            self.event = _later(self.event, event)
            return True
        return self.event == event


class Inbox:
    """Events that wait to be applied. Events of one agent keep their order. `clock`: function for times of arrival."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self._clock = clock
        self._all: deque[Pending] = deque()
        """Pending events in the order of arrival, including some that no longer wait."""
        self._queues: OrderedDict[str | None, OrderedDict[Pending, None]] = OrderedDict()
        """Pending events by run; None for nodes. Ordered dicts, since the first entries leave first: see `liveness`."""
        self._latest: dict[_Key, Pending] = {}

    def put(self, run_id: str | None, event: Event, caller: Done | None = None) -> Pending:
        """Add an event, or return the pending one that it repeats or replaces. `run_id`: None if it is about a node."""
        key = _key_of(run_id, event)
        pending = self._latest.get(key) if key else None
        if pending is None or not pending.takes(event):
            pending = Pending(run_id, event, key, self._clock())
            self._add(pending)
        if caller is not None:
            pending.callers.append(caller)
        return pending

    def pop(self) -> Pending:
        """Take the next event. Raises `KeyError` if there is none."""
        run_id, queue = self._queues.popitem(last=False)
        pending, _ = queue.popitem(last=False)
        if queue:
            self._queues[run_id] = queue
        self._forget(pending)
        return pending

    def leave(self, pending: Pending, caller: Done) -> None:
        """Note that a caller no longer waits, and drop the event if nothing else depends on it."""
        if not pending.waits:
            return
        pending.callers.remove(caller)
        if not pending.callers and isinstance(pending.event, OperatorQuery):
            queue = self._queues[pending.run_id]
            del queue[pending]
            if not queue:
                del self._queues[pending.run_id]
            self._forget(pending)

    def unread_since(self) -> float:
        """Return the arrival of the oldest pending event; infinite if there is none."""
        while self._all and not self._all[0].waits:
            self._all.popleft()
        return self._all[0].arrived_at if self._all else float("inf")

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def _add(self, pending: Pending) -> None:
        queue = self._queues.get(pending.run_id)
        if queue is None:
            queue = self._queues[pending.run_id] = OrderedDict()
        queue[pending] = None
        self._all.append(pending)
        if key := pending.key:
            run_id, agent_id, _ = key
            self._latest.pop((run_id, agent_id, LeaseRenewed), None)  # a later sign comes after this event
            self._latest[key] = pending

    def _forget(self, pending: Pending) -> None:
        pending.waits = False
        if pending.key and self._latest.get(pending.key) is pending:
            del self._latest[pending.key]


def _key_of(run_id: str | None, event: Event) -> _Key | None:
    """Return the key of an agent's event; None for other events."""
    agent_id: str = event.join.agent_id if isinstance(event, NodeJoined) else getattr(event, "agent_id", "")
    if run_id is None or not agent_id:
        return None
    return run_id, agent_id, LeaseRenewed if isinstance(event, _SIGNS) else type(event)


def _later(before: Event, event: Event) -> Event:
    """Return the later of an agent's two signs, or the poll, with the latest report of its workers in either."""
    if isinstance(before, LeaseRenewed) and isinstance(event, LeaseRenewed):
        progress, finished = event.progress or before.progress, event.finished or before.finished
        return replace(event if event.is_poll else before, progress=progress, finished=finished)
    return event
