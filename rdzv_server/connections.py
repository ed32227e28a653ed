"""Which connection carries which agent's polls, so that its closing is noticed at once."""

from collections.abc import Callable, Hashable

from rdzv_server.waiters import Key


class Connections:
    """One current connection for each agent: an agent that has moved to another one does not miss the first."""

    def __init__(self, disconnected: Callable[[Key], None]) -> None:
        self._disconnected = disconnected
        self._agents: dict[Hashable, set[Key]] = {}
        self._current: dict[Key, Hashable] = {}

    def carry(self, connection: Hashable, key: Key) -> None:
        """The agent's polls come over this connection now."""
        self._agents.setdefault(connection, set()).add(key)
        self._current[key] = connection

    def lost(self, connection: Hashable) -> None:
        """The connection closed: so did that of every agent that it carries."""
        for key in self._agents.pop(connection, ()):
            if self._current.get(key) is connection:
                del self._current[key]
                self._disconnected(key)
