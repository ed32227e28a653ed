"""The agent's own temporary folder: where its workers' error files go. Gone when the agent is."""

import os


class ScratchDir:
    """Made on first use, for this user alone. No part of its path comes from a run id or a node id."""

    def __init__(self) -> None:
        self._path = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"node-agent-{os.urandom(8).hex()}")
        self._made = False

    def path(self, name: str) -> str:
        """A path within the folder, which exists then."""
        if not self._made:
            os.makedirs(self._path, mode=0o700)
            self._made = True
        return os.path.join(self._path, name)

    def error_file(self, round_: int, local_rank: int) -> str:
        """Where a worker's `@record` writes its error; the folder exists."""
        folder = os.path.join(self.path(f"attempt_{round_ - 1}"), str(local_rank))
        os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, "error.json")

    def remove(self) -> None:
        if self._made:
            import shutil

            shutil.rmtree(self._path, ignore_errors=True)
