"""The logs of one agent, round after round: where they are, and what becomes of them when it goes."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rdzv_protocol.messages import Assignment

from node_agent.config import AgentConfig
from node_agent.output.console import ERR, OUT, Console
from node_agent.output.destinations import Destinations, by_flags, instead_of_files, narrowed
from node_agent.output.folder import RunFolder, wants_files
from node_agent.output.log_names import PREFIX_TEMPLATE
from node_agent.output.round_logs import Kit, RoundLogs
from node_agent.workers.temp_dir import ScratchDir

if TYPE_CHECKING:
    from node_agent.output.file_tails import Followers
    from node_agent.output.filters import FilteredFile
    from node_agent.output.line_prefix import Marks
    from node_agent.output.logs_specs import Plugin


class AgentLogs:
    """Trouble with files stops no run: it is said once, and output goes to the console instead.

    With `--logs-specs`, `broken` is told, with one line, if the plug-in cannot do its work.
    """

    def __init__(
        self, config: AgentConfig, console: Console, scratch: ScratchDir, broken: Callable[[str], None]
    ) -> None:
        self._config = config
        self._options = config.logs
        self._console = console
        self._folder = RunFolder(config.logs, config.run_id, scratch)
        self.plugin: Plugin | None = self._start_plugin(broken) if config.logs.plugin else None
        """If there is one, rounds are opened with `ask`."""
        self._kit = Kit(console, self._marks(), self._trouble, self._get_followers)
        self._followers: Followers | None = None
        self._is_announced = False
        self._troubles: set[str] = set()

    @property
    def kept_path(self) -> str:
        """Where the files are that stay when the agent goes; empty for nowhere."""
        return self._folder.made if self._folder.is_kept else ""

    @property
    def keeps_error_files(self) -> bool:
        """Whether error files are there when the agent is gone."""
        return self._folder.is_kept

    def open(self, assignment: Assignment) -> RoundLogs:
        """The logs of the next round's workers, as the flags say."""
        try:
            destinations = by_flags(self._options, self._folder, assignment)
        except OSError as error:
            self._trouble(error)
            destinations = instead_of_files(self._options, assignment)
        self._announce(destinations)
        return self._round(assignment, destinations)

    async def ask(self, assignment: Assignment, environments: Sequence[Mapping[str, str]]) -> RoundLogs:
        """The same, as the plug-in says. Raises `PluginFailed`."""
        assert self.plugin
        destinations = narrowed(await self.plugin.reify(environments), self._options, assignment)
        self._kit = self._kit._replace(marks=self._marks())
        return self._round(assignment, destinations)

    async def close(self) -> None:
        """The workers are gone: show what is still to be shown, as long as the console takes it."""
        if self._followers:
            if behind := await self._followers.drain():
                self._console.say(f"the console was too slow for the last {_size(behind)}: see {self._folder.path}")
            self._followers.close()
        if self.plugin:
            await self.plugin.close()

    def _announce(self, destinations: Destinations) -> None:
        """Say once where the files are that the user asked for."""
        has_files = destinations.has_files or (destinations.filtered_stdout and wants_files(self._options))
        if has_files and not self._is_announced:
            self._is_announced = True
            self._console.say(f"logs: {self._folder.path}")

    def _round(self, assignment: Assignment, destinations: Destinations) -> RoundLogs:
        filters = {
            OUT: (destinations.filtered_stdout, self._options.stdout_filters),
            ERR: (destinations.filtered_stderr, self._options.stderr_filters),
        }
        filtered = {fd: self._filtered(path, texts) for fd, (path, texts) in filters.items() if path and texts}
        return RoundLogs(self._kit, assignment, destinations, filtered)

    def _filtered(self, path: str, texts: Sequence[str]) -> "FilteredFile":
        from node_agent.output.filters import FilteredFile

        return FilteredFile(path, texts, self._trouble)

    def _get_followers(self) -> "Followers":
        if self._followers is None:
            from node_agent.output.file_tails import Followers

            self._followers = Followers(self._console, self._trouble)
        return self._followers

    def _marks(self) -> "Marks | None":
        """None if no line will need one."""
        config = self._config
        if config.logs.prefix is None and self.plugin is None and not wants_files(config.logs):
            return None
        from node_agent.output.line_prefix import Marks

        teed = config.environment.get(PREFIX_TEMPLATE)
        return Marks(role=config.role, node_id=config.node_id, asked=config.logs.prefix, teed=teed)

    def _start_plugin(self, broken: Callable[[str], None]) -> "Plugin":
        from node_agent.output.logs_specs import LogsPlugin

        return LogsPlugin(self._options, self._config.environment, broken)

    def _trouble(self, error: OSError) -> None:
        """Say each kind of it once."""
        kind = error.strerror or str(error)
        if kind not in self._troubles:
            self._troubles.add(kind)
            self._console.say(f"log files: {error.filename or self._options.log_dir}: {kind}; the run goes on")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count} bytes"
