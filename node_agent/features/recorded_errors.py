"""Reports errors of workers that have exited 0 nevertheless: such a run may not have done its work.

torch's `@record` writes an exception to the worker's error file, then raises the exception again. If an exception ends
a script, torch marks its lines on stderr. If an exception ends a thread, Python writes this to stderr, and the script
continues. A script that catches the exception, or that exits 0 in an exit handler, counts as a success under every
launcher.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from rdzv_protocol.messages import ReportedError
from rdzv_protocol.text import clip, printable

from node_agent.kernel.feature import Feature
from node_agent.kernel.threads import in_thread

LOOK_WITHIN_S = 2.0
"""Most seconds that the search for errors waits for the disk of the error files."""
MOST_BYTES = 512
"""Most bytes of an error in a report."""
MOST = 8
"""Most errors in a report."""


class RecordedErrors(Feature):
    """Looks for such errors while the agent reports that its workers have succeeded."""

    async def errors_of_success(self, found: Callable[[ReportedError], None]) -> None:
        if not (started := self.kernel.started):
            return
        first, uncaught = started.assignment.first_rank, started.group.uncaught
        for local_rank in sorted(uncaught)[:MOST]:  # known without the disk
            found(_report(self, first + local_rank, uncaught[local_rank]))
        in_files: Mapping[int, str] = {}
        with suppress(OSError):  # the disk hangs
            in_files = await in_thread(partial(recorded, started.group.error_files), LOOK_WITHIN_S)
        others = sorted(in_files.keys() - uncaught.keys())
        for local_rank in others[: max(0, MOST - len(uncaught))]:
            found(_report(self, first + local_rank, in_files[local_rank]))


def _report(feature: Feature, rank: int, error: str) -> ReportedError:
    from node_agent.features import words

    text = clip(printable(error), MOST_BYTES)
    feature.kernel.console.log(words.exited_0_with_error(rank, text))
    return ReportedError(rank=rank, error=text)


def recorded(paths: Sequence[str]) -> dict[int, str]:
    """Return the error in each of these files that exists and has one, by its index."""
    from node_agent.kernel.failures.error_file import read

    found = {index: read(path) for index, path in enumerate(paths) if path}
    return {index: file.error for index, file in found.items() if file and file.error}
