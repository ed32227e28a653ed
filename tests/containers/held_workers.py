"""Workers in containers that report their ranks and then wait until the test releases them."""

import os
from pathlib import Path

SCRIPT = """\
import os
print("rank {RANK} of {WORLD_SIZE}".format_map(os.environ), flush=True)
open(f"/shared/{os.environ['RANK']}").close()  # waits until somebody may write there
"""


class HeldWorkers:
    """A folder that containers mount as `volume`, with the script `/shared/script.py`."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        folder.chmod(0o755)
        (folder / "script.py").write_text(SCRIPT)
        for rank in range(most):
            os.mkfifo(folder / str(rank))

    @property
    def volume(self) -> str:
        return f"{self._folder}:/shared:ro"

    def finish(self) -> None:
        """Let all workers end, including those that start later."""
        for rank in range(self._most):
            os.open(self._folder / str(rank), os.O_RDWR)  # stays open as long as the test process
