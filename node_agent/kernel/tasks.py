"""Tasks that are not awaited."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]] | None = None) -> asyncio.Task[None]:
    """Start a task that is never awaited. The loop's handler gets its exception. `tasks` holds it until it ends."""
    task = asyncio.create_task(work)
    if tasks is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    task.add_done_callback(_raise)
    return task


def _raise(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()
