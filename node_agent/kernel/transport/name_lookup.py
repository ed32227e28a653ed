"""Look-ups of host names that a silent name server cannot block.

A look-up runs until the name server has answered or timed out (after 20 s or more), even if no caller still needs it.
So each look-up has a thread of its own, and each name has at most one look-up at a time. It asks up to three times in
parallel, because the system's resolver waits 5 s for a lost packet. If no caller could wait for the answer, the next
caller gets it. Otherwise each call looks the name up again, since hosts may move.

The module remembers the address at which a server has answered, or else the one that the name had. So an agent can
connect without a name server. It forgets an address when a look-up finds the name elsewhere.
"""

import asyncio
import socket
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Any
from weakref import WeakKeyDictionary

from node_agent.kernel.threads import in_thread

ANSWER_HOLDS_S = 5.0
"""Seconds for which an answer is kept for the next caller: longer than the pause between two tries of an agent."""
AGAIN_AFTER_S = (1.0, 2.0)
"""Seconds without an answer after which the name is looked up a second, and then a third time."""

Address = tuple[int, tuple[Any, ...]]
"""Family and address of a socket."""

Name = tuple[str, int]
"""Host and port."""
LookUp = asyncio.Task[list[Address]]


class _Names:
    """Look-ups and addresses of one event loop."""

    def __init__(self) -> None:
        self.look_ups: dict[Name, LookUp] = {}
        self.answered_at: dict[Name, Address] = {}
        """Address at which the server of each name has answered last."""
        self.found_at: dict[Name, Address] = {}
        """First address that the last look-up of each name has found. The server there may never have answered."""


_names: WeakKeyDictionary[asyncio.AbstractEventLoop, _Names] = WeakKeyDictionary()


async def addresses(host: str, port: int) -> list[Address]:
    """Return the addresses of a host. Raises `socket.gaierror` if its name is unknown, `UnicodeError` if invalid."""
    if _is_numeric(host):
        return _addresses(socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM))
    task = start(host, port)
    try:
        return await asyncio.shield(task)
    finally:
        if task.done():
            _forget(_known().look_ups, (host, port), task)


async def why_unknown(host: str) -> str:
    """Return why a host's name has no address, in words; empty if it has one, or is an address."""
    try:
        await addresses(host, 0)
    except (socket.gaierror, UnicodeError) as error:
        return in_words(error)
    return ""


def in_words(error: socket.gaierror | UnicodeError) -> str:
    """Return the reason of a failed look-up, without its number."""
    return str(getattr(error, "strerror", None) or error)


def start(host: str, port: int) -> LookUp:
    """Start a look-up of the name, or return the one that is running."""
    names = _known()
    if (task := names.look_ups.get((host, port))) is None:
        task = names.look_ups[host, port] = asyncio.get_running_loop().create_task(_look_up(names, host, port))
        task.add_done_callback(lambda task: _answered(names, (host, port), task))
    return task


def remember(host: str, port: int, address: Address) -> None:
    """Record that the server of this name has answered at this address."""
    if not _is_numeric(host):
        _known().answered_at[host, port] = address


def remembered(host: str, port: int) -> Address | None:
    """Return the address at which this name's server answered last, or else the one that a look-up has found.

    None if the name was not found yet.
    """
    names = _known()
    return names.answered_at.get((host, port)) or names.found_at.get((host, port))


def _known() -> _Names:
    return _names.setdefault(asyncio.get_running_loop(), _Names())


def _is_numeric(host: str) -> bool:
    """Return whether the host is an address, which needs no look-up."""
    for family, text in ((socket.AF_INET, host), (socket.AF_INET6, host.partition("%")[0])):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, text)
            return True
    return False


async def _look_up(names: _Names, host: str, port: int) -> list[Address]:
    found = _addresses(await _first_answer(host, port))
    names.found_at[host, port] = found[0]
    if names.answered_at.get((host, port)) not in found:
        names.answered_at.pop((host, port), None)
    return found


async def _first_answer(host: str, port: int) -> list[Any]:
    """Return the resolver's first answer. Raises its error if every question failed."""
    name = _plain(host)
    asked: set[asyncio.Task[list[Any]]] = set()
    left = 1 + len(AGAIN_AFTER_S)
    try:
        waits_s = chain(AGAIN_AFTER_S, repeat(None))
        while True:
            if left:
                left -= 1
                ask = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
                asked.add(asyncio.ensure_future(in_thread(ask)))
            done, asked = await asyncio.wait(asked, timeout=next(waits_s), return_when=asyncio.FIRST_COMPLETED)
            answers = [question for question in done if question.exception() is None]
            if answers or not asked:
                return (answers or list(done))[0].result()
    finally:
        for question in asked:
            question.cancel()


def _plain(host: str) -> bytes | str:
    """Return the host as bytes if possible. For text Python loads a codec, even if the text is an address."""
    return host.encode() if host.isascii() else host


def _addresses(found: list[Any]) -> list[Address]:
    """Return the addresses, IPv4 first.

    The agent's own address, from which it reaches the server, may become MASTER_ADDR. Its family must be one that every
    node has, and more nodes lack IPv6.
    """
    addresses = [(family, address) for family, *_, address in found]
    return sorted(addresses, key=lambda each: each[0] != socket.AF_INET)


def _answered(names: _Names, name: Name, task: LookUp) -> None:
    """Keep the answer for a while, unless a waiting caller takes it now."""
    if task.cancelled() or task.exception():
        _forget(names.look_ups, name, task)
    else:
        task.get_loop().call_later(ANSWER_HOLDS_S, _forget, names.look_ups, name, task)


def _forget(look_ups: dict[Name, LookUp], name: Name, task: LookUp) -> None:
    if look_ups.get(name) is task:
        del look_ups[name]
