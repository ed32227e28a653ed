"""Connections that carry agents' polls, so that the closing of an agent's last one is noticed at once."""

from collections.abc import Callable

from rdzv_protocol.errors import ServerUnavailable

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
        """Told how many connections carry agents, whenever that has changed."""
        self._agents: dict[Connection, set[Key]] = {}
        self._connections: dict[Key, set[Connection]] = {}

    def bind(self, connection: Connection, key: Key) -> None:
        """Note that the agent's polls come over this connection. Raises `ServerUnavailable` if it is closed.

        A connection may be closed before what it brought is looked at, and nobody would say so a second time.
        """
        if connection.is_closed:
            raise ServerUnavailable("the connection is closed")
        if key in self._agents.get(connection, ()):
            return
        self._agents.setdefault(connection, set()).add(key)
        self._connections.setdefault(key, set()).add(connection)
        self.changed(len(self._agents))

    def unbind(self, connection: Connection, key: Key) -> None:
        """Forget the agent of a poll that was refused: nobody is missed."""
        if key in (keys := self._agents.get(connection, set())):
            keys.discard(key)
            self._leave(key, connection)
            if not keys:
                del self._agents[connection]
                self.changed(len(self._agents))

    def lost(self, connection: Connection) -> None:
        """Note that the connection closed: an agent that has no other is missed."""
        if (keys := self._agents.pop(connection, None)) is None:
            return
        for key in keys:
            if self._leave(key, connection):
                self._disconnected(key)
        self.changed(len(self._agents))

    def _leave(self, key: Key, connection: Connection) -> bool:
        """Whether it was the agent's last."""
        others = self._connections[key]
        others.discard(connection)
        if not others:
            del self._connections[key]
        return not others
