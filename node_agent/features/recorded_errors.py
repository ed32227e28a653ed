"""Warns of errors that workers have recorded although they exited 0: such a run may not have done its work.

torch's `@record` writes an exception to the worker's error file before it raises the exception again. A script that
catches it there, or that exits 0 in an exit handler, counts as a success under every launcher.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.text import clip, printable

from node_agent.kernel.feature import Feature, Kernel, StartedWorkers
from node_agent.kernel.threads import in_thread

LOOK_WITHIN_S = 2.0
"""Most seconds that an exiting agent waits for the disk of the error files."""
MOST_BYTES = 512
"""Most bytes of an error in a warning."""


class RecordedErrors(Feature):
    """Looks for such errors when the agent exits because its run has succeeded."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._succeeded: StartedWorkers | None = None

    def ended(self, exit_code: ExitCode) -> None:
        self._succeeded = self.kernel.started if exit_code is ExitCode.SUCCEEDED else None

    async def close(self) -> None:
        if started := self._succeeded:
            found: dict[int, str] = {}
            with suppress(OSError):  # the disk hangs
                found = await in_thread(partial(recorded, started.group.error_files), LOOK_WITHIN_S)
            for local_rank, error in found.items():
                from node_agent.features import words

                rank, text = started.assignment.first_rank + local_rank, clip(printable(error), MOST_BYTES)
                self.kernel.console.log(words.error_recorded(rank, text))


def recorded(paths: Sequence[str]) -> dict[int, str]:
    """Return the error in each of these files that exists and has one, by its index."""
    from node_agent.kernel.failures.error_file import read

    found = {index: read(path) for index, path in enumerate(paths) if path}
    return {index: file.error for index, file in found.items() if file and file.error}
