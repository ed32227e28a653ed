"""Tasks that run concurrently until the first of them ends."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def first_of(*parts: Awaitable[T]) -> T:
    """Run all parts until the first one ends; return its result, or raise what it raised.

    The others are cancelled and waited for, first to last, even if the caller is cancelled again meanwhile.
    `asyncio.TaskGroup` waits for all, cancels them in no order, and wraps what they raise.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        was_cancelled = [await _end(task) for task in tasks]
        if any(was_cancelled):
            raise asyncio.CancelledError


async def _end(task: asyncio.Future[T]) -> bool:
    """Cancel a task and wait for its end. Return whether the caller was cancelled meanwhile."""
    was_cancelled = False
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
            task.cancel()
    task.cancelled() or task.exception()  # marks the exception as retrieved
    return was_cancelled
