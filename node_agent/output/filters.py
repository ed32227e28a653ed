"""`filtered_stdout.log` and `filtered_stderr.log`: the lines of all workers of a node that hold one of some texts."""

import os
from collections.abc import Callable, Sequence

LONGEST_LINE = 1 << 20


class FilteredFile:
    """One of the files, open while a worker's output is copied to it. `on_error` is told when it cannot be written."""

    def __init__(self, path: str, texts: Sequence[str], on_error: Callable[[OSError], None]) -> None:
        self._path = path
        self._texts = [text.encode(errors="surrogateescape") for text in texts]
        self._on_error = on_error
        self._users = 0
        self._file = -1

    def open(self) -> None:
        self._users += 1
        if self._file < 0:
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK  # it may be a pipe
                self._file = os.open(self._path, flags, 0o666)
            except OSError as error:
                self._on_error(error)

    def close(self) -> None:
        """Close it; to be called as often as `open`."""
        self._users -= 1
        if not self._users and self._file >= 0:
            os.close(self._file)
            self._file = -1

    def is_wanted(self, output: bytes) -> bool:
        return any(text in output for text in self._texts)

    def write(self, lines: bytes) -> None:
        """All of them at once."""
        if self._file >= 0:
            try:
                os.write(self._file, lines)
            except OSError as error:
                self._on_error(error)


class Filtered:
    """Copies one worker's wanted lines to the file, each after `prefix`, as torchrun does."""

    def __init__(self, prefix: str, file: FilteredFile) -> None:
        self._prefix = prefix.encode(errors="surrogateescape")
        self._file = file
        self._held = b""
        file.open()

    def take(self, chunk: bytes) -> None:
        output = self._held + chunk
        end = max(output.rfind(b"\n"), output.rfind(b"\r")) + 1
        if not end and len(output) > LONGEST_LINE:
            end = len(output)
        self._held = output[end:]
        self._copy(output[:end])

    def end(self) -> None:
        self._copy(self._held)
        self._file.close()

    def _copy(self, output: bytes) -> None:
        if output and self._file.is_wanted(output):  # else not a single line is looked at
            wanted = (line for line in output.splitlines() if self._file.is_wanted(line))
            self._file.write(b"".join(self._prefix + line + b"\n" for line in wanted))
