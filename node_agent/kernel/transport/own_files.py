"""Files of an agent: its token, and certificates for TLS. It reads them again when that may help.

Their disk may hang. Then the agent does without, and keeps its seat if its server still accepts what it read before.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from rdzv_protocol.credentials import Credentials

from node_agent.kernel.threads import in_thread

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

READ_S = 0.5
"""Most seconds to wait for files that were read before."""


class OwnFiles:
    """Files that `credentials` name."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._context = _Read(credentials.context)
        self._token = _Read(partial(credentials.renew, None))

    async def tls_context(self) -> "ssl.SSLContext | None":
        """Return the TLS context of a new connection; None without TLS. Raises `ValueError` if a file is bad.

        The context is of the current files, or of earlier ones if the disk hangs.
        """
        if self.credentials.tls is None:
            return None
        latest = self.credentials.latest_context
        return await self._context.soon(READ_S if latest else None) or latest

    async def has_other_token(self, than: str | None) -> bool:
        """Read the token again. Return whether it is now another one."""
        if self.credentials.token_file is not None:
            await self._token.soon(READ_S)
        return self.credentials.token != than


class _Read(Generic[T]):
    """Call that reads files in a thread. There is one thread, however long their disk hangs."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._task: asyncio.Future[T] | None = None

    async def soon(self, within_s: float | None) -> T | None:
        """Return the result of a new call, or of the one that still runs. Return None after `within_s`."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(in_thread(self._call))
            self._task.add_done_callback(_take_error)
        done, _ = await asyncio.wait([self._task], timeout=within_s)
        return done.pop().result() if done else None


def _take_error(task: "asyncio.Future[T]") -> None:
    """Take a late call's error, which asyncio would log: the next call reads the files again, and reports it."""
    if not task.cancelled():
        task.exception()
