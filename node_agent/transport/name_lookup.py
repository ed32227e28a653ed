"""Look-up of host names that does not get stuck behind a name server which does not answer.

A look-up takes one of the event loop's few threads until the name server has answered or been given up, 20 s or more,
also when nobody waits for it any more. So there is one at a time for a name, however often that is asked for; and its
answer waits for those who could not wait so long and ask again.
"""

import asyncio
import socket
from typing import Any
from weakref import WeakKeyDictionary

ANSWER_HOLDS_S = 5.0
"""Time for which an answer is good: longer than the pause between two tries of an agent, shorter than a name's usual
time to live."""

Address = tuple[int, tuple[Any, ...]]
"""Family and address of a socket."""

_look_ups: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], asyncio.Task[list[Address]]]]" = (
    WeakKeyDictionary()
)


async def addresses(host: str, port: int) -> list[Address]:
    """Where a host is. Raises `socket.gaierror` if its name is not known, `UnicodeError` if it is none."""
    loop = asyncio.get_running_loop()
    known = _look_ups.setdefault(loop, {})
    if (task := known.get((host, port))) is None:
        task = known[host, port] = loop.create_task(_look_up(host, port))
        task.add_done_callback(lambda task: _answered(known, (host, port), task))
    return await asyncio.shield(task)


async def _look_up(host: str, port: int) -> list[Address]:
    name = host.encode() if host.isascii() else host  # text has Python load a codec
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, *_, address in found]


def _answered(known: dict[tuple[str, int], Any], name: tuple[str, int], task: "asyncio.Task[list[Address]]") -> None:
    if task.cancelled() or task.exception():
        del known[name]
    else:
        task.get_loop().call_later(ANSWER_HOLDS_S, known.pop, name, None)
