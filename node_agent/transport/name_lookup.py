"""Look-up of host names that does not get stuck behind a name server which does not answer.

A look-up takes one of the event loop's few threads until the name server has answered or been given up, 20 s or more,
also when nobody waits for it any more. So there is one at a time for a name, however often that is asked for. An answer
for which nobody could wait so long is for whoever asks next; else each time is looked anew, since hosts may move.
"""

import asyncio
import socket
from typing import Any
from weakref import WeakKeyDictionary

ANSWER_HOLDS_S = 5.0
"""Time for which an answer waits for who asks next: longer than the pause between two tries of an agent."""

Address = tuple[int, tuple[Any, ...]]
"""Family and address of a socket."""

Name = tuple[str, int]
"""Host and port."""
LookUp = asyncio.Task[list[Address]]
LookUps = dict[Name, LookUp]

_look_ups: WeakKeyDictionary[asyncio.AbstractEventLoop, LookUps] = WeakKeyDictionary()


async def addresses(host: str, port: int) -> list[Address]:
    """Addresses of a host. Raises `socket.gaierror` if its name is not known, `UnicodeError` if it is no name."""
    loop = asyncio.get_running_loop()
    known = _look_ups.setdefault(loop, {})
    if (task := known.get((host, port))) is None:
        task = known[host, port] = loop.create_task(_look_up(host, port))
        task.add_done_callback(lambda task: _answered(known, (host, port), task))
    try:
        return await asyncio.shield(task)
    finally:
        if task.done():
            _forget(known, (host, port), task)


async def _look_up(host: str, port: int) -> list[Address]:
    name = host.encode() if host.isascii() else host  # text has Python load a codec
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, *_, address in found]


def _answered(known: LookUps, name: Name, task: LookUp) -> None:
    """Keep the answer for a while, unless somebody who waits takes it now."""
    if task.cancelled() or task.exception():
        _forget(known, name, task)
    else:
        task.get_loop().call_later(ANSWER_HOLDS_S, _forget, known, name, task)


def _forget(known: LookUps, name: Name, task: LookUp) -> None:
    if known.get(name) is task:
        del known[name]
