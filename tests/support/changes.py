"""Changes that a test waits for, without polling."""

import asyncio
from collections.abc import Callable

PATIENCE_S = 10.0


class Changes(asyncio.Event):
    """Event that is set whenever something has changed. `within_s`: most seconds for which a test waits."""

    def __init__(self, within_s: float = PATIENCE_S) -> None:
        super().__init__()
        self._within_s = within_s

    async def until(self, holds: Callable[[], object]) -> None:
        """Return once a change makes the condition true."""
        async with asyncio.timeout(self._within_s):
            while not holds():
                self.clear()
                await self.wait()
