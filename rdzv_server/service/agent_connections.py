"""Which connections carry which agent's polls, so that the closing of the last one is noticed at once."""

from collections.abc import Callable

from rdzv_server.service.interface import Connection
from rdzv_server.service.long_polls import Key


class Connections:
    """The connections over which an agent has spoken and that still stand.

    As a rule that is one. While an agent moves from one to another there may be two, and a request may arrive late on
    the first; so an agent is missed only when none is left.
    """

    def __init__(self, disconnected: Callable[[Key], None]) -> None:
        self._disconnected = disconnected
        self.changed: Callable[[int], None] = lambda connections: None
        """Told how many connections carry agents, whenever that may have changed."""
        self._agents: dict[Connection, set[Key]] = {}
        self._standing: dict[Key, set[Connection]] = {}

    def carry(self, connection: Connection, key: Key) -> None:
        """The agent's polls come over this connection."""
        if key in self._agents.get(connection, ()):
            return
        self._agents.setdefault(connection, set()).add(key)
        self._standing.setdefault(key, set()).add(connection)
        self.changed(len(self._agents))

    def put_down(self, connection: Connection, key: Key) -> None:
        """It was no agent's poll after all, and nobody is missed."""
        self._agents.get(connection, set()).discard(key)
        standing = self._standing.get(key, set())
        standing.discard(connection)
        if not standing:
            self._standing.pop(key, None)

    def lost(self, connection: Connection) -> None:
        """The connection closed: an agent that has no other is missed."""
        carried = self._agents.pop(connection, None)
        if carried is None:
            return
        for key in carried:
            self._standing[key].discard(connection)
            if not self._standing[key]:
                del self._standing[key]
                self._disconnected(key)
        self.changed(len(self._agents))
