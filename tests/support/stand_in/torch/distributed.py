"""A key-value store with the interface of torch's."""

import json
import os
import socket
import socketserver
import threading
import time
import weakref
from collections.abc import Iterator

from torch.version import __version__


class TCPStore:
    def __init__(
        self,
        host: str,
        port: int,
        *,
        is_master: bool,
        wait_for_workers: bool,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        if use_libuv and master_listen_fd is not None and __version__.startswith(("2.6.", "2.7.")):
            raise NotImplementedError("The libuv TCPStore backend does not support initialization with an listen fd.")
        if is_master:
            is_given = master_listen_fd is not None
            listener = socket.socket(fileno=master_listen_fd) if is_given else socket.create_server(("", port))
            weakref.finalize(self, _Server(listener).close)
        if master_listen_fd is None:
            self._file = _connected(host, port).makefile("rw")
            self.check([""])  # torch's constructor returns once the server has answered

    def set(self, key: str, value: str) -> None:
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        while not self.check([key]):
            time.sleep(0.01)
        return str(self._ask("get", key)).encode()

    def check(self, keys: list[str]) -> bool:
        return all(self._ask("has", key) for key in keys)

    def _ask(self, *request: str) -> object:
        self._file.write(f"{json.dumps(request)}\n")
        self._file.flush()
        return json.loads(self._file.readline())


def rendezvous(url: str) -> Iterator[tuple[TCPStore, int, int]]:
    rank = int(os.environ["RANK"])
    hosts = rank == 0 and os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "True"
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    yield TCPStore(*address, is_master=hosts, wait_for_workers=False), rank, int(os.environ["WORLD_SIZE"])


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), _Client, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.values: dict[str, str] = {}
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Client(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        values = self.server.values
        for line in self.rfile:
            order, key, *value = json.loads(line)
            if order == "set":
                values[key] = value[0]
            answer = {"set": None, "get": values.get(key), "has": key in values}[order]
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def _connected(host: str, port: int) -> socket.socket:
    """Return a connection, once rank 0 listens."""
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            time.sleep(0.01)
