"""Listener at which workers report that they run, and whose end they notice."""

import socket
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 30.0


class WorkerListener:
    """A listener at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(16)
        self._listener.settimeout(PATIENCE_S)
        self._connections: list[socket.socket] = []

    def pids(self, count: int) -> set[int]:
        found = set()
        for _ in range(count):
            connection, _ = self._listener.accept()
            connection.settimeout(PATIENCE_S)
            self._connections.append(connection)
            found.add(int(connection.makefile().readline().split()[0]))
        return found

    def close_connections(self) -> None:
        for connection in self._connections:
            with suppress(OSError):  # the process is gone
                connection.shutdown(socket.SHUT_RDWR)  # also for the copy that a fork has
            connection.close()
        self._connections.clear()

    def close(self) -> None:
        self.close_connections()
        self._listener.close()
