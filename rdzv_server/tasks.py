"""Tasks that run beside each other until the first of them ends."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def first_of(*parts: Awaitable[T]) -> T:
    """Run all parts until the first one ends; return its result, or raise what it raised.

    The others are cancelled and waited for, first to last. `asyncio.TaskGroup` waits for all, cancels them in no order,
    and wraps what they raise.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
