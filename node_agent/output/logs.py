"""Logs of one agent's workers, round after round: what they write to, and what becomes of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rdzv_protocol.messages import Assignment

from node_agent.config import AgentConfig
from node_agent.output.console import ERR, OUT, Console
from node_agent.output.folder import RunFolder, wants_files
from node_agent.output.lines import AsItComes, Lines
from node_agent.output.pipe import Relay, Sink, Stream, Tail, pipe_bytes
from node_agent.output.routing import Route, Routing, by_flags, narrowed, without_files
from node_agent.workers.temp_dir import TempDir

if TYPE_CHECKING:
    from node_agent.output.file_tail import FileTail, FileTails
    from node_agent.output.filters import FilteredFile
    from node_agent.output.line_prefix import LinePrefix
    from node_agent.output.logs_specs import Plugin


class LogContext(NamedTuple):
    """Console, prefix and tails that the rounds of an agent share."""

    console: Console
    prefix: "LinePrefix | None"
    """None: no line says whose it is, whatever becomes of it."""
    on_error: Callable[[OSError], None]
    """Told of files that cannot be written."""
    tails: Callable[[], "FileTails"]
    """Made when they are first needed."""


class RoundLogs:
    """Streams and environment of each worker of a round, by local rank. `filtered`: by descriptor."""

    def __init__(
        self, context: LogContext, assignment: Assignment, routing: Routing, filtered: Mapping[int, "FilteredFile"]
    ) -> None:
        self._context = context
        self._assignment = assignment
        self._workers = routing.workers
        self._filtered = filtered
        self._one_is_shown = sum(worker.is_shown for worker in self._workers) == 1

    def environment(self, local_rank: int) -> Mapping[str, str]:
        """Variables that its environment must have; TORCHELASTIC_ERROR_FILE, as a rule."""
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

    def _open(self, local_rank: int, fd: int, route: Route) -> Stream:
        if route.path:
            try:
                return self._file(local_rank, fd, route)
            except OSError as error:
                self._context.on_error(error)
                route = Route(shown=True, prefixed=True)
        return self._pipe(local_rank, fd, route)

    def _file(self, local_rank: int, fd: int, route: Route) -> Stream:
        from node_agent.output.streams import FileStream

        def tail(file: int) -> "FileTail":
            return self._context.tails().open(file, self._sinks(local_rank, fd, route), shown=route.shown)

        is_followed = route.shown or fd in self._filtered
        return FileStream(route.path, tail if is_followed else None, self._context.on_error)

    def _pipe(self, local_rank: int, fd: int, route: Route) -> Stream:
        sinks = self._sinks(local_rank, fd, route)
        if fd == ERR:
            sinks.append(Tail())
        if not sinks:
            from node_agent.output.streams import Dropped

            return Dropped()
        return Relay(sinks, self._context.console if route.shown else None, pipe_bytes(len(self._workers)))

    def _sinks(self, local_rank: int, fd: int, route: Route) -> list[Sink]:
        sinks: list[Sink] = []
        if route.shown:
            sinks.append(self._console_sink(local_rank, fd, route.prefixed))
        if fd in self._filtered:
            from node_agent.output.filters import Filtered

            sinks.append(Filtered(self._prefix(local_rank, prefixed=True), self._filtered[fd]))
        return sinks

    def _console_sink(self, local_rank: int, fd: int, prefixed: bool) -> Sink:
        prefix = self._prefix(local_rank, prefixed)
        if prefix or not self._one_is_shown:
            return Lines(prefix, self._context.console, fd)
        return AsItComes(self._context.console, fd, self)

    def _prefix(self, local_rank: int, prefixed: bool) -> str:
        prefix = self._context.prefix
        if prefix is None:
            return ""
        return (prefix.of_teed if prefixed else prefix.of_any)(self._assignment, local_rank)


class AgentLogs:
    """Opens the logs of each round. Trouble with files stops no run: it is said once, and the console shows the output.

    With `--logs-specs`, `on_error` gets one line if the plug-in cannot do its work.
    """

    def __init__(
        self, config: AgentConfig, console: Console, temp_dir: TempDir, on_error: Callable[[str], None]
    ) -> None:
        self._config = config
        self._options = config.logs
        self._console = console
        self._folder = RunFolder(config.logs, config.run_id, temp_dir)
        self.plugin: Plugin | None = self._start_plugin(on_error) if config.logs.plugin else None
        """If there is one, rounds are opened with `ask`."""
        self._context = LogContext(console, self._prefix(), self._log_error, self._get_tails)
        self._tails: FileTails | None = None
        self._is_announced = False
        self._errors: set[str] = set()

    @property
    def kept_path(self) -> str:
        """Folder of the files that stay when the agent goes; empty: there are none."""
        return self._folder.made if self._folder.is_kept else ""

    @property
    def keeps_error_files(self) -> bool:
        """Whether error files are there when the agent is gone."""
        return self._folder.is_kept

    def open(self, assignment: Assignment) -> RoundLogs:
        """The logs of the next round's workers, as the flags say."""
        try:
            routing = by_flags(self._options, self._folder, assignment)
        except OSError as error:
            self._log_error(error)
            routing = without_files(self._options, assignment)
        self._announce(routing)
        return self._round(assignment, routing)

    async def ask(self, assignment: Assignment, environments: Sequence[Mapping[str, str]]) -> RoundLogs:
        """The logs of the next round's workers, as the plug-in says. Raises `PluginFailed`."""
        assert self.plugin
        routing = narrowed(await self.plugin.reify(environments), self._options, assignment)
        self._context = self._context._replace(prefix=self._prefix())
        return self._round(assignment, routing)

    async def close(self) -> None:
        """Show what is still to be shown, as long as the console takes it: the workers are gone."""
        if self._tails:
            if behind := await self._tails.drain():
                self._console.say(f"the console was too slow for the last {_size(behind)}: see {self._folder.path}")
            self._tails.close()
        if self.plugin:
            await self.plugin.close()

    def _announce(self, routing: Routing) -> None:
        """Say once where the files are that the user asked for."""
        has_files = routing.has_files or (routing.filtered_stdout and wants_files(self._options))
        if has_files and not self._is_announced:
            self._is_announced = True
            self._console.say(f"logs: {self._folder.path}")

    def _round(self, assignment: Assignment, routing: Routing) -> RoundLogs:
        filters = {
            OUT: (routing.filtered_stdout, self._options.stdout_filters),
            ERR: (routing.filtered_stderr, self._options.stderr_filters),
        }
        filtered = {fd: self._filtered(path, texts) for fd, (path, texts) in filters.items() if path and texts}
        return RoundLogs(self._context, assignment, routing, filtered)

    def _filtered(self, path: str, texts: Sequence[str]) -> "FilteredFile":
        from node_agent.output.filters import FilteredFile

        return FilteredFile(path, texts, self._log_error)

    def _get_tails(self) -> "FileTails":
        if self._tails is None:
            from node_agent.output.file_tail import FileTails

            self._tails = FileTails(self._console, self._log_error)
        return self._tails

    def _prefix(self) -> "LinePrefix | None":
        """None if no line will need one."""
        config = self._config
        if config.logs.prefix is None and self.plugin is None and not wants_files(config.logs):
            return None
        from node_agent.output.line_prefix import PREFIX_TEMPLATE, LinePrefix

        teed = config.environment.get(PREFIX_TEMPLATE)
        return LinePrefix(role=config.role, node_id=config.node_id, asked=config.logs.prefix, teed=teed)

    def _start_plugin(self, on_error: Callable[[str], None]) -> "Plugin":
        from node_agent.output.logs_specs import LogsPlugin

        return LogsPlugin(self._options, self._config.environment, on_error)

    def _log_error(self, error: OSError) -> None:
        """Say each kind of it once."""
        kind = error.strerror or str(error)
        if kind not in self._errors:
            self._errors.add(kind)
            self._console.say(f"log files: {error.filename or self._options.log_dir}: {kind}; the run goes on")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count} bytes"
