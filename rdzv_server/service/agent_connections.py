"""Connections that carry agents' polls, so that the closing of an agent's last one is noticed at once."""

from collections.abc import Callable

from rdzv_protocol.errors import ServerUnavailable

from rdzv_server.service.interface import Connection
from rdzv_server.service.long_polls import Key


class Connections:
    """Open connections over which agents have sent requests.

    As a rule an agent has one. While it moves from one to another there may be two, and a request may arrive late on
    the first; so an agent counts as disconnected only when none is left.
    """

    def __init__(self, disconnected: Callable[[Key], None]) -> None:
        self._disconnected = disconnected
        self.changed: Callable[[int], None] = lambda connections: None
        """Callback for the number of connections that carry agents, whenever it changes."""
        self._agents: dict[Connection, set[Key]] = {}
        self._connections: dict[Key, set[Connection]] = {}

    def bind(self, connection: Connection, key: Key) -> None:
        """Note that the agent's polls come over this connection. Raises `ServerUnavailable` if it is closed.

        A connection may be closed before its request is read, and nothing would report that a second time.
        """
        if connection.is_closed:
            raise ServerUnavailable("the connection is closed")
        if key in self._agents.get(connection, ()):
            return
        self._agents.setdefault(connection, set()).add(key)
        self._connections.setdefault(key, set()).add(connection)
        self.changed(len(self._agents))

    def unbind(self, connection: Connection, key: Key) -> None:
        """Forget that a connection carries an agent whose poll was refused; it does not count as disconnected."""
        if key in (keys := self._agents.get(connection, set())):
            keys.discard(key)
            self._leave(key, connection)
            if not keys:
                del self._agents[connection]
                self.changed(len(self._agents))

    def lost(self, connection: Connection) -> None:
        """Note that a connection closed: an agent that has no other is disconnected."""
        if (keys := self._agents.pop(connection, None)) is None:
            return
        for key in keys:
            if self._leave(key, connection):
                self._disconnected(key)
        self.changed(len(self._agents))

    def _leave(self, key: Key, connection: Connection) -> bool:
        """Remove an agent's connection; return whether it was its last."""
        others = self._connections[key]
        others.discard(connection)
        if not others:
            del self._connections[key]
        return not others
