"""Logs of one agent's workers in each round: what the workers write to, and what happens with it."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from errno import ETIMEDOUT
from functools import partial

from rdzv_protocol.flag_values import LogStream
from rdzv_protocol.messages import Assignment

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.effects import Level
from node_agent.kernel.core.log_options import PREFIX_TEMPLATE, LogOptions
from node_agent.kernel.output.console import ERR, OUT, Console
from node_agent.kernel.output.folder import RunFolder, wants_files
from node_agent.kernel.output.log_files import LogFile, LogFiles, OpenedFile
from node_agent.kernel.output.routing import Plugin, Route, Routing, WorkerRoutes, by_flags, narrowed, without_files
from node_agent.kernel.output.sinks import AsItComes, Filtered, Lines, Sink, Tail
from node_agent.kernel.output.streams import Joined, Relay, Stream, pipe_bytes
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.threads import in_thread

OPENED_WITHIN_S = 30.0
"""Most seconds that workers wait for their files. A busy network disk takes seconds."""
MOST_ANNOUNCED = 1_024
"""Most characters of a path in a join."""


Sinks = Callable[[int, bool], Sequence[Sink]]
"""Returns sinks for a stream of the worker with a local rank. The flag is whether the console shows the stream."""


class RoundLogs:
    """Streams and environment of each worker of a round, by local rank.

    `prefix` returns the prefix of a worker's lines. Its flag is whether the stream is teed.
    """

    def __init__(
        self,
        routing: Routing,
        options: LogOptions,
        prefix: Callable[[int, bool], str],
        console: Console,
        files: LogFiles,
        further: Sinks | None = None,
    ) -> None:
        self._further = further
        self._workers = routing.workers
        self._prefix = prefix
        self._console = console
        self._files = files
        self._one_is_shown = sum(worker.is_shown for worker in self._workers) == 1
        filters = (
            (OUT, routing.filtered_stdout, options.stdout_filters),
            (ERR, routing.filtered_stderr, options.stderr_filters),
        )
        self.filtered = {fd: (path, texts) for fd, path, texts in filters if path and texts}
        """File for lines that contain one of these texts, by stream."""
        self._opened: dict[str, OpenedFile | OSError] = {}
        """Files that have been opened, by path."""

    def open_files(self) -> None:
        """Open the workers' files, in any thread. A file that cannot be opened is reported when its worker starts."""
        for worker in self._workers:
            for path in filter(None, (worker.stdout.path, worker.stderr.path)):
                try:
                    self._opened[path] = OpenedFile(path)
                except OSError as error:
                    self._opened[path] = error

    def close_files(self) -> None:
        """Close the files that no worker uses."""
        while self._opened:
            _, opened = self._opened.popitem()
            if isinstance(opened, OpenedFile):
                opened.close()

    def path_of(self, local_rank: int, stream: LogStream) -> str:
        """Return the file of one of the worker's streams, empty if it has none."""
        worker = self._workers[local_rank]
        return (worker.stdout if stream == "stdout" else worker.stderr).path

    def environment(self, local_rank: int) -> Mapping[str, str]:
        """Return the variables that the worker's environment must have, usually TORCHELASTIC_ERROR_FILE."""
        return self._workers[local_rank].environment

    def open_streams(self, local_rank: int) -> tuple[Stream, Stream]:
        """Return streams for a worker's stdout and stderr. Raises `OSError` if no pipe can be made; files need none."""
        worker = self._workers[local_rank]
        if self._is_joined(worker):
            both = Relay([*self._sinks(local_rank, OUT, worker.stdout), Tail()], self._console, self._pipe_bytes)
            return both, Joined(both)
        out = self._open(local_rank, OUT, worker.stdout)
        try:
            return out, self._open(local_rank, ERR, worker.stderr)
        except OSError:
            out.finish()
            raise

    def _is_joined(self, worker: WorkerRoutes) -> bool:
        """Return whether both of the worker's streams go to the same place and need not be kept apart."""
        is_alike = worker.stdout == worker.stderr and worker.stdout.shown and not worker.stdout.path
        return is_alike and self._console.is_one and not self.filtered

    @property
    def _pipe_bytes(self) -> int:
        return pipe_bytes(len(self._workers))

    def _open(self, local_rank: int, fd: int, route: Route) -> Stream:
        if route.path:
            try:
                make_sinks = partial(self._sinks, local_rank, fd, route)
                opened = self._opened.pop(route.path, None)
                if isinstance(opened, OSError):
                    raise opened
                return LogFile(route.path, make_sinks, self._files, shown=route.shown, opened=opened)
            except OSError as error:
                self._files.report(route.path, error)
                route = Route(shown=True, prefixed=True)
        sinks = self._sinks(local_rank, fd, route)
        if fd == ERR:
            sinks.append(Tail())
        if not sinks:
            return Stream()
        return Relay(sinks, self._console if route.shown else None, self._pipe_bytes)

    def _sinks(self, local_rank: int, fd: int, route: Route) -> list[Sink]:
        sinks: list[Sink] = []
        if route.shown:
            prefix = self._prefix(local_rank, route.prefixed)
            alone = self._one_is_shown and not prefix
            sinks.append(AsItComes(self._console, fd, self) if alone else Lines(prefix, self._console, fd))
        if fd in self.filtered:
            sinks.append(Filtered(*self.filtered[fd], self._prefix(local_rank, True), self._files.copy))
        return [*sinks, *self._further(local_rank, route.shown)] if self._further else sinks


class AgentLogs:
    """Opens the logs of each round. A problem with files does not stop a run: it is logged once, and the console shows
    the output.

    With `--logs-specs`, `on_error` is called with one line if the plug-in cannot work. `further` returns further sinks.
    """

    def __init__(
        self,
        config: AgentConfig,
        console: Console,
        temp_dir: TempDir,
        on_error: Callable[[str], None],
        further: Sinks | None = None,
    ) -> None:
        self._further = further
        self._config = config
        self._options = config.logs
        self._console = console
        self._temp_dir = temp_dir
        self._folder = RunFolder(config.logs, config.join.run_id, temp_dir)
        self._files = LogFiles(console)
        self.plugin: Plugin | None = self._start_plugin(on_error) if config.logs.plugin else None
        """Plug-in of `--logs-specs`, None if the flags choose the files."""
        self._is_announced = False
        self.readable_path = ""
        """The run's folder, with links in its path resolved; empty if there is none or a plug-in chooses the files."""
        self._is_opening = False

    @property
    def kept_path(self) -> str:
        """Folder of the files that remain when the agent exits, empty if there are none."""
        return self._folder.made if self._folder.is_kept else ""

    @property
    def announced_path(self) -> str:
        """Folder of future log files, to be shown to others; empty if there will be none or a plug-in chooses them."""
        path = "" if self.plugin else self._folder.will_have
        return path if len(path) <= MOST_ANNOUNCED else ""

    @property
    def keeps_error_files(self) -> bool:
        """Whether error files remain when the agent has exited."""
        return self._folder.is_kept

    async def open(self, assignment: Assignment, environments: Callable[[], Sequence[Mapping[str, str]]]) -> RoundLogs:
        """Return the logs of the next round's workers, by the flags or the plug-in. Raises `PluginFailed`.

        `environments`: returns those of the workers, which the plug-in gets.
        """
        try:
            if self.plugin:
                routing = narrowed(await self.plugin.reify(environments()), self._options, assignment.ranks)
                return await self._opened(lambda: self._round(assignment, routing))
            logs = await self._opened(lambda: self._made(assignment))
        except OSError as error:
            where = "--logs-specs" if self.plugin else error.filename or self._folder.parent
            self._files.report(where, error)
            return self._round(assignment, without_files(self._options, assignment.ranks))
        if self._folder.made and wants_files(self._options) and not self._is_announced:
            self._is_announced = True
            self._console.log(words.progress.logs_are_in(self._folder.made), Level.ROUTINE)
        return logs

    async def _opened(self, make: Callable[[], RoundLogs]) -> RoundLogs:
        """Return logs with open files. Raises `OSError` if there are none or the disk does not answer.

        The same thread makes the temporary folder, which workers need for other files too.
        """

        def open_files() -> RoundLogs:
            try:
                with suppress(OSError):  # workers can run without it
                    self._temp_dir.make()
                logs = make()
                logs.open_files()
                return logs
            finally:
                self._is_opening = False

        if self._is_opening:
            raise OSError(ETIMEDOUT, words.output.DISK_STILL_HANGS)
        self._is_opening = True
        return await in_thread(open_files, OPENED_WITHIN_S, RoundLogs.close_files)

    def _made(self, assignment: Assignment) -> RoundLogs:
        routing = by_flags(self._options, self._folder, assignment.round, assignment.ranks)
        self.readable_path = os.path.realpath(self._folder.made) if self._folder.made else ""
        return self._round(assignment, routing)

    async def close(self) -> None:
        """Show the remaining output of ended workers while the console takes it."""
        if behind := await self._files.drain():
            self._console.log(words.output.console_too_slow(behind, self._folder.made))
        self._files.close()
        if self.plugin:
            await self.plugin.close()

    def _round(self, assignment: Assignment, routing: Routing) -> RoundLogs:
        prefix = partial(line_prefix, self._config, assignment)
        return RoundLogs(routing, self._options, prefix, self._console, self._files, self._further)

    def _start_plugin(self, on_error: Callable[[str], None]) -> Plugin:
        from node_agent.kernel.output.logs_specs import LogsPlugin

        return LogsPlugin(self._options, self._config.environment, on_error)


def line_prefix(config: AgentConfig, assignment: Assignment, local_rank: int, teed: bool) -> str:
    """Return the text before a worker's lines, empty for none.

    The user's template marks every line. Without a template, torchrun's marks only teed lines.
    """
    template = config.logs.prefix or (teed and config.environment.get(PREFIX_TEMPLATE))
    if not template:
        return default_prefix(config.join.role, local_rank) if teed else ""
    from string import Template

    return Template(template).safe_substitute(
        role_name=config.join.role,
        rank=assignment.first_rank + local_rank,
        local_rank=local_rank,
        hostname=os.uname().nodename.partition(".")[0],
        node_id=config.join.node_id,
        group_rank=assignment.group_rank,
    )


def default_prefix(role: str, local_rank: int) -> str:
    """Return torchrun's prefix for a teed line."""
    return f"[{role}{local_rank}]:"
