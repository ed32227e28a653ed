"""Workers in containers that tell their ranks and then wait until the test lets them go."""

import asyncio
import os
from pathlib import Path

SCRIPT = """\
import os
print("rank {RANK} of {WORLD_SIZE}".format_map(os.environ), flush=True)
open(f"/shared/{os.environ['RANK']}").close()  # waits until somebody writes there
"""


class HeldWorkers:
    """A folder that containers mount as `volume`, with the script `/shared/script.py`."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        folder.chmod(0o755)
        (folder / "script.py").write_text(SCRIPT)
        for rank in range(most):
            os.mkfifo(folder / str(rank))

    @property
    def volume(self) -> str:
        return f"{self._folder}:/shared:ro"

    async def finish(self, size: int) -> None:
        """Let the workers of a round of this size end; returns when each of them has heard it."""
        for rank in range(size):
            await asyncio.to_thread((self._folder / str(rank)).write_text, "")
