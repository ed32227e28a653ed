"""Connections that carry agents' polls: what the close of a connection says about its agents.

If a connection closes while a poll is parked or unread on it, that is a sign that the agent is gone. A close after the
answer says nothing: a proxy, or this server, may close a connection that is not used. Only the agent's connection is
then known to be closed, unless it carried a single request, since some proxies close after each answer.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from msgspec import Struct
from rdzv_protocol.errors import ProtocolError, ServerUnavailable

from rdzv_server.service.interface import Connection
from rdzv_server.service.long_polls import AgentKey
from rdzv_server.words import service as words


class _Path(Struct):
    """Path of an agent's latest request to the server."""

    connection: Connection
    requests: int = 0
    """Number of the agent's requests that this connection has carried."""
    is_parked: bool = False

    def __enter__(self) -> None:
        """Park a poll on this path."""
        self.is_parked = True

    def __exit__(self, *ignored: object) -> None:
        self.is_parked = False


class Connections:
    """Open connections over which agents have sent requests.

    Only the connection of an agent's latest request says something about the agent.
    """

    def __init__(self, disconnected: Callable[[AgentKey, bool], None], came: Callable[[], None] = lambda: None) -> None:
        """Begin without connections.

        `disconnected` is called with an agent whose connection has closed, and with whether its poll was parked on it.
        `came` is called for each connection that carries an agent for the first time.
        """
        self._disconnected, self._came = disconnected, came
        self.changed: Callable[[int], None] = lambda connections: None
        """Callback that gets the number of connections that carry agents whenever it changes."""
        self._agents: dict[Connection, set[AgentKey]] = {}
        self._paths: dict[AgentKey, _Path] = {}

    def bind(self, connection: Connection, key: AgentKey) -> None:
        """Note that a request of the agent came over this connection. Raises `ServerUnavailable` if it is closed.

        A connection may close before its request is read, and no second report of that would come.
        """
        if connection.is_closed:
            raise ServerUnavailable(words.CONNECTION_CLOSED)
        path = self._paths.get(key)
        if path is None or path.connection is not connection:
            path = self._paths[key] = _Path(connection)
            if connection not in self._agents:
                self._agents[connection] = set()
                self._came()
            self._agents[connection].add(key)
            self.changed(len(self._agents))
        path.requests += 1

    def bound(self, connection: Connection, key: AgentKey) -> AbstractContextManager[None]:
        """Bind the connection to the agent. Unbind it if the request is refused, unless the server is unavailable."""
        return _Bound(self, connection, key)

    def unbind(self, connection: Connection, key: AgentKey) -> None:
        """Forget that a connection carries an agent whose request was refused.

        The agent does not count as disconnected.
        """
        if key not in (keys := self._agents.get(connection, set())):
            return
        keys.discard(key)
        if not keys:
            del self._agents[connection]
            self.changed(len(self._agents))
        self._pop(key, connection)

    def parked(self, connection: Connection, key: AgentKey) -> AbstractContextManager[None]:
        """Note that the agent's poll is parked on this connection, until the context ends."""
        path = self._paths.get(key)
        return path if path is not None and path.connection is connection else _Path(connection)

    def lost(self, connection: Connection) -> None:
        """Note that a connection closed: agents whose polls were parked on it may be gone."""
        if (keys := self._agents.pop(connection, None)) is None:
            return
        for key in keys:
            path = self._pop(key, connection)
            if path is not None and (path.is_parked or path.requests > 1):
                self._disconnected(key, path.is_parked)
        self.changed(len(self._agents))

    def let_go(self) -> None:
        """Let go of all connections, which no longer say anything about agents."""
        self._agents.clear()
        self._paths.clear()

    def left_unread(self, key: AgentKey) -> None:
        """Note that an agent's poll was read after its connection closed: the agent is gone unless it has another."""
        if key not in self._paths:
            self._disconnected(key, True)

    def _pop(self, key: AgentKey, connection: Connection) -> _Path | None:
        """Forget the agent's path if it is this connection. Return the path, or None if it is another one."""
        path = self._paths.get(key)
        if path is None or path.connection is not connection:
            return None
        return self._paths.pop(key)


class _Bound(Struct):
    """Binding of a connection while a request of its agent is handled; quicker than a generator."""

    connections: Connections
    connection: Connection
    key: AgentKey

    def __enter__(self) -> None:
        self.connections.bind(self.connection, self.key)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ProtocolError) and not isinstance(error, ServerUnavailable):
            self.connections.unbind(self.connection, self.key)
