"""Feature: answers the server's queries for the end of a worker's log file, which an operator asks for.

The agent reads only files that it has opened for this worker itself. The path must still be a file in the run's own
folder, since a worker may have replaced it by a link. Threads read the files, and an exit does not wait for them, since
a network disk may hang for any time.
"""

import asyncio
import codecs
import os
import stat
import threading
from contextlib import suppress
from errno import ELOOP

from rdzv_protocol.flag_values import LogStream
from rdzv_protocol.queries import LOG_BYTES, LogTail, Query, Refused, TailLog

from node_agent.features import log_reads
from node_agent.features.log_reads import words
from node_agent.kernel.feature import Feature, Kernel, StartedWorkers

MOST_READS = 4
"""Most reads at a time. Reads on a disk that hangs may never end."""
_OTHER: dict[LogStream, LogStream] = {"stdout": "stderr", "stderr": "stdout"}
LONGEST_PATH = 1_024
"""Most characters of a path in an answer."""


class LogReads(Feature):
    """Answers `TailLog` queries."""

    def __init__(self, kernel: Kernel, options: log_reads.LogReads) -> None:
        super().__init__(kernel)
        self._node_id, self._is_allowed = kernel.config.join.node_id, options.allow_log_reads
        self._under_way = 0

    async def answer(self, query: Query) -> LogTail | Refused:
        assert isinstance(query, TailLog)
        if not self._is_allowed:
            return Refused(reason=words.not_allowed(self._node_id))
        if (started := self.kernel.started) is None:
            return Refused(reason=words.no_worker_yet(self._node_id))
        path = self._path(query, started)
        return path if isinstance(path, Refused) else await self._read_beside(path, started.log_folder, query)

    def _path(self, query: TailLog, started: StartedWorkers) -> str | Refused:
        """Return the file that the worker was given."""
        assignment, logs = started.assignment, started.logs
        if assignment.round != query.round or query.rank not in assignment.ranks:
            return Refused(reason=words.no_such_worker(self._node_id, query.rank, query.round))
        local_rank = query.rank - assignment.first_rank
        path, other = (logs.path_of(local_rank, stream) for stream in (query.stream, _OTHER[query.stream]))
        if not path:
            return Refused(reason=words.no_file(self._node_id, query.rank, query.stream, bool(other)))
        if not started.log_folder:
            return Refused(reason=words.place_unknown(self._node_id))
        return path

    async def _read_beside(self, path: str, folder: str, query: TailLog) -> LogTail | Refused:
        if self._under_way >= MOST_READS:
            return Refused(reason=words.still_reading(self._node_id))
        loop = asyncio.get_running_loop()
        found: asyncio.Future[LogTail | Refused] = loop.create_future()

        def ended(answer: LogTail | Refused) -> None:
            self._under_way -= 1
            if not found.done():
                found.set_result(answer)

        def work() -> None:
            answer = self._read(path, folder, query.lines, query.offset)
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(ended, answer)

        try:
            threading.Thread(target=work, name="log reader", daemon=True).start()
        except RuntimeError:
            return Refused(reason=words.no_thread(self._node_id))
        self._under_way += 1
        return await found

    def _read(self, path: str, folder: str, lines: int, offset: int | None) -> LogTail | Refused:
        try:
            return _tail(path, folder, lines, offset)
        except OSError as error:
            if error.errno == ELOOP:
                return Refused(reason=words.not_in_folder(self._node_id, path))
            return Refused(reason=words.unreadable(self._node_id, path, error.strerror or str(error)))


def _tail(path: str, folder: str, lines: int, offset: int | None) -> LogTail:
    """Return the end of the file. Raises `OSError`, with ELOOP (the kernel's error for a link) if it is not a file in
    the folder.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not os.readlink(f"/proc/self/fd/{file}").startswith(f"{folder}/"):
            raise OSError(ELOOP, os.strerror(ELOOP), path)
        wanted = offset if offset is not None and offset <= status.st_size else 0  # the file may have been emptied
        begin = max(wanted, status.st_size - LOG_BYTES)
        data = os.pread(file, min(LOG_BYTES, status.st_size - begin), begin)
    finally:
        os.close(file)
    is_cut, end = begin > wanted, begin + len(data)
    if offset is None:
        whole = _last_lines(data, lines)
        data, is_cut = (data if whole is None else whole), is_cut and whole is None
    if is_cut:
        data = data[data.find(b"\n") + 1 :]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    unfinished = len(decoder.getstate()[0])  # the beginning of a character that is not complete yet
    shown_path = os.fsencode(path).decode(errors="replace")[:LONGEST_PATH]
    return LogTail(path=shown_path, text=text, offset=end - unfinished, is_cut=is_cut)


def _last_lines(data: bytes, lines: int) -> bytes | None:
    """Return the last lines, None if there are no more than that."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(lines):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return None
    return data[at + 1 :]
