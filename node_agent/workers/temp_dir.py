"""The agent's own temporary folder: what its workers need and nobody asked to keep. Gone when the agent is."""

import os


class TempDir:
    """Made on first use, for this user alone. No part of its path comes from a run id or a node id."""

    def __init__(self) -> None:
        self.folder = temporary_path("node-agent")
        """Path of the folder, whether it has been made or not."""
        self._made = False

    def path(self, name: str) -> str:
        """A path within the folder, which exists then. Raises `OSError`."""
        if not self._made:
            os.makedirs(self.folder, mode=0o700)
            self._made = True
        return os.path.join(self.folder, name)

    def remove(self) -> None:
        if self._made:
            import shutil

            shutil.rmtree(self.folder, ignore_errors=True)


def temporary_path(beginning: str) -> str:
    """The path of a temporary folder that nobody else has."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"{beginning}-{os.urandom(8).hex()}")
