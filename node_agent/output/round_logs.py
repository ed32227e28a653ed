"""The output of one round's workers: what they write to, and what becomes of it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rdzv_protocol.messages import Assignment

from node_agent.output.console import ERR, OUT, Console
from node_agent.output.destinations import Destination, Destinations
from node_agent.output.lines import AsItComes, Lines
from node_agent.output.pipe import Relay, Sink, Stream, Tail, pipe_bytes

if TYPE_CHECKING:
    from node_agent.output.file_tail import Follower
    from node_agent.output.file_tails import Followers
    from node_agent.output.filters import FilteredFile
    from node_agent.output.line_prefix import Marks


class Kit(NamedTuple):
    """What the rounds of an agent share."""

    console: Console
    marks: "Marks | None"
    """None: no line says whose it is, whatever becomes of it."""
    trouble: Callable[[OSError], None]
    """Told of files that cannot be written."""
    followers: Callable[[], "Followers"]
    """Made when they are first needed."""


class RoundLogs:
    """What each worker of a round needs of it, by local rank. `filtered`: by descriptor."""

    def __init__(
        self, kit: Kit, assignment: Assignment, destinations: Destinations, filtered: Mapping[int, "FilteredFile"]
    ) -> None:
        self._kit = kit
        self._assignment = assignment
        self._workers = destinations.workers
        self._filtered = filtered
        self._one_is_shown = sum(worker.is_shown for worker in self._workers) == 1

    def environment(self, local_rank: int) -> Mapping[str, str]:
        """What its environment must have; TORCHELASTIC_ERROR_FILE, as a rule."""
        return self._workers[local_rank].environment

    def open_streams(self, local_rank: int) -> tuple[Stream, Stream]:
        """Its stdout and stderr. Raises `OSError` if there are no pipes left; files do without, if they must."""
        worker = self._workers[local_rank]
        out = self._open(local_rank, OUT, worker.stdout)
        try:
            return out, self._open(local_rank, ERR, worker.stderr)
        except OSError:
            out.finish()
            raise

    def _open(self, local_rank: int, fd: int, destination: Destination) -> Stream:
        if destination.path:
            try:
                return self._file(local_rank, fd, destination)
            except OSError as error:
                self._kit.trouble(error)
                destination = destination._replace(path="", shown=True, marked=True)
        return self._pipe(local_rank, fd, destination)

    def _file(self, local_rank: int, fd: int, destination: Destination) -> Stream:
        from node_agent.output.streams import FileStream

        def follow(file: int) -> "Follower":
            return self._kit.followers().make(file, self._sinks(local_rank, fd, destination), shown=destination.shown)

        is_followed = destination.shown or fd in self._filtered
        return FileStream(destination.path, follow if is_followed else None, self._kit.trouble)

    def _pipe(self, local_rank: int, fd: int, destination: Destination) -> Stream:
        sinks = self._sinks(local_rank, fd, destination)
        if fd == ERR:
            sinks.append(Tail())
        if not sinks:
            from node_agent.output.streams import Dropped

            return Dropped()
        console = self._kit.console if destination.shown else None
        return Relay(sinks, console, pipe_bytes(len(self._workers)))

    def _sinks(self, local_rank: int, fd: int, destination: Destination) -> list[Sink]:
        sinks: list[Sink] = []
        if destination.shown:
            sinks.append(self._console_sink(local_rank, fd, destination.marked))
        if fd in self._filtered:
            from node_agent.output.filters import Filtered

            sinks.append(Filtered(self._mark(local_rank, marked=True), self._filtered[fd]))
        return sinks

    def _console_sink(self, local_rank: int, fd: int, marked: bool) -> Sink:
        mark = self._mark(local_rank, marked)
        if mark or not self._one_is_shown:
            return Lines(mark, self._kit.console, fd)
        return AsItComes(self._kit.console, fd, self)

    def _mark(self, local_rank: int, marked: bool) -> str:
        marks = self._kit.marks
        if marks is None:
            return ""
        return (marks.of_teed if marked else marks.of_any)(self._assignment, local_rank)
