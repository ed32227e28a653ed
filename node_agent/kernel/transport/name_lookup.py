"""Look-up of host names that does not get stuck behind a name server which does not answer.

A look-up lasts until the name server has answered or been given up, 20 s or more, also if nobody waits for it any more.
So each has a thread of its own, and there is one at a time for a name, however often that is asked for. It asks up to
three times, the next time beside those before: the system's resolver waits 5 s for a lost packet. An answer for which
nobody could wait so long is for the next caller; else each call looks the name up anew, since hosts may move.

The address at which a server has answered is remembered, so that an agent reaches it again without any name server.
It is forgotten when a look-up finds the name elsewhere.
"""

import asyncio
import socket
from contextlib import suppress
from itertools import chain, repeat
from typing import Any
from weakref import WeakKeyDictionary

from node_agent.kernel.transport.base import in_own_thread

ANSWER_HOLDS_S = 5.0
"""Time for which an answer waits for who asks next: longer than the pause between two tries of an agent."""
AGAIN_AFTER_S = (1.0, 2.0)
"""Seconds without an answer after which the name is asked for a second time, and then a third time."""

Address = tuple[int, tuple[Any, ...]]
"""Family and address of a socket."""

Name = tuple[str, int]
"""Host and port."""
LookUp = asyncio.Task[list[Address]]


class _Names:
    """Names that one event loop's agents use."""

    def __init__(self) -> None:
        self.look_ups: dict[Name, LookUp] = {}
        self.answered_at: dict[Name, Address] = {}
        """The address at which the server of each name has answered last."""


_names: WeakKeyDictionary[asyncio.AbstractEventLoop, _Names] = WeakKeyDictionary()


async def addresses(host: str, port: int) -> list[Address]:
    """Addresses of a host. Raises `socket.gaierror` if its name is not known, `UnicodeError` if it is no name."""
    if _is_numeric(host):
        return _addresses(socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM))
    task = start(host, port)
    try:
        return await asyncio.shield(task)
    finally:
        if task.done():
            _forget(_known().look_ups, (host, port), task)


async def why_unknown(host: str) -> str:
    """Reason in words why a host's name leads to no address; empty if it leads to one, or is one."""
    try:
        await addresses(host, 0)
    except (socket.gaierror, UnicodeError) as error:
        return in_words(error)
    return ""


def in_words(error: socket.gaierror | UnicodeError) -> str:
    """Reason of a failed look-up, without its number."""
    return str(getattr(error, "strerror", None) or error)


def start(host: str, port: int) -> LookUp:
    """Begin to look the name up, unless a look-up is under way."""
    names = _known()
    if (task := names.look_ups.get((host, port))) is None:
        task = names.look_ups[host, port] = asyncio.get_running_loop().create_task(_look_up(names, host, port))
        task.add_done_callback(lambda task: _answered(names, (host, port), task))
    return task


def remember(host: str, port: int, address: Address) -> None:
    """Note that the server of this name has answered at this address."""
    if not _is_numeric(host):
        _known().answered_at[host, port] = address


def remembered(host: str, port: int) -> Address | None:
    """The address at which the server of this name has answered last, unless the name is known to be elsewhere."""
    return _known().answered_at.get((host, port))


def _known() -> _Names:
    return _names.setdefault(asyncio.get_running_loop(), _Names())


def _is_numeric(host: str) -> bool:
    """Whether the host is an address, for which no name server is asked."""
    for family, text in ((socket.AF_INET, host), (socket.AF_INET6, host.partition("%")[0])):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, text)
            return True
    return False


async def _look_up(names: _Names, host: str, port: int) -> list[Address]:
    found = _addresses(await _first_answer(host, port))
    if names.answered_at.get((host, port)) not in found:
        names.answered_at.pop((host, port), None)
    return found


async def _first_answer(host: str, port: int) -> list[Any]:
    """First answer of the resolver. Raises its error once each question has brought one."""
    name = _plain(host)
    asked: set[asyncio.Task[list[Any]]] = set()
    left = 1 + len(AGAIN_AFTER_S)
    try:
        waits_s = chain(AGAIN_AFTER_S, repeat(None))
        while True:
            if left:
                left -= 1
                asked.add(asyncio.ensure_future(in_own_thread(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)))
            done, asked = await asyncio.wait(asked, timeout=next(waits_s), return_when=asyncio.FIRST_COMPLETED)
            answers = [question for question in done if question.exception() is None]
            if answers or not asked:
                return (answers or list(done))[0].result()
    finally:
        for question in asked:
            question.cancel()


def _plain(host: str) -> bytes | str:
    """The host as bytes where possible: for text Python loads a codec, also for an address."""
    return host.encode() if host.isascii() else host


def _addresses(found: list[Any]) -> list[Address]:
    return [(family, address) for family, *_, address in found]


def _answered(names: _Names, name: Name, task: LookUp) -> None:
    """Keep the answer for a while, unless somebody who waits takes it now."""
    if task.cancelled() or task.exception():
        _forget(names.look_ups, name, task)
    else:
        task.get_loop().call_later(ANSWER_HOLDS_S, _forget, names.look_ups, name, task)


def _forget(look_ups: dict[Name, LookUp], name: Name, task: LookUp) -> None:
    if look_ups.get(name) is task:
        del look_ups[name]
