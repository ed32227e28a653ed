"""A file that is there while the agent is part of its run: for readiness probes, which then need no port."""

import os
from contextlib import suppress


class ReadyFile:
    """The file at `path`, which holds this process's id; none is kept without a path.

    What an agent that was killed has left there is removed at once.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._is_there = path is not None

    def show(self, is_member: bool) -> None:
        """Have the file there, or not. Raises `OSError`; the next attempt is at the next change."""
        if self._path is None or is_member == self._is_there:
            return
        self._is_there = is_member
        if is_member:
            new = f"{self._path}.{os.getpid()}"
            with open(new, "w") as file:
                file.write(f"{os.getpid()}\n")
            os.replace(new, self._path)  # whoever finds it can read the whole of it
        else:
            with suppress(FileNotFoundError):
                os.remove(self._path)
