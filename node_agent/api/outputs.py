"""Where the output of `start_processes` goes, by the agent's own means."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdzv_protocol.messages import Assignment

from node_agent.api.default_logs_specs import DefaultLogsSpecs, LogsSpecs
from node_agent.core.log_options import LogOptions
from node_agent.output.console import ERR, OUT, Console
from node_agent.output.destinations import ERROR_FILE, Destination, Destinations, WorkerLogs, by_flags
from node_agent.output.file_tails import Followers
from node_agent.output.filters import FilteredFile
from node_agent.output.folder import RunFolder
from node_agent.output.line_prefix import Marks
from node_agent.output.log_names import default_prefix
from node_agent.output.round_logs import Kit, RoundLogs
from node_agent.workers.temp_dir import ScratchDir


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """What one `start_processes` asks for, checked."""

    name: str
    specs: DefaultLogsSpecs | LogsSpecs
    options: LogOptions
    """The filters; all of it where `specs` is a `DefaultLogsSpecs`."""
    prefixes: Mapping[int, str] | None
    """What stands before teed lines, by local rank; torch's default for those that it leaves out."""


class Outputs:
    """The streams of the processes, in the event loop of the thread that starts them. Raises `OSError`."""

    def __init__(
        self, settings: OutputSettings, environments: Mapping[int, Mapping[str, str]], console: Console
    ) -> None:
        self._settings = settings
        self._console = console
        self._scratch = ScratchDir()
        self._followers = Followers(console, self._trouble)
        assignment = _one_round(environments)
        self._destinations = self._decide(environments, assignment)
        marks = _Marks(role=settings.name, node_id="", asked=None, teed=None, prefixes=settings.prefixes or {})
        kit = Kit(console, marks, self._trouble, lambda: self._followers)
        self._round = RoundLogs(kit, assignment, self._destinations, self._filtered())
        self.open_streams = self._round.open_streams
        self.environment = self._round.environment

    @property
    def stdouts(self) -> dict[int, str]:
        """The files, by local rank; empty where there is none."""
        return {rank: worker.stdout.path for rank, worker in enumerate(self._destinations.workers)}

    @property
    def stderrs(self) -> dict[int, str]:
        return {rank: worker.stderr.path for rank, worker in enumerate(self._destinations.workers)}

    @property
    def error_files(self) -> dict[int, str]:
        return {rank: worker.error_file for rank, worker in enumerate(self._destinations.workers)}

    async def close(self) -> None:
        """The processes are gone: show what is still to be shown."""
        await self._followers.drain()
        self._followers.close()

    def forget(self) -> None:
        """Remove what nobody asked to keep, error files included."""
        self._scratch.remove()

    def _decide(self, environments: Mapping[int, Mapping[str, str]], assignment: Assignment) -> Destinations:
        specs = self._settings.specs
        if isinstance(specs, DefaultLogsSpecs):
            run_id = environments[0].get("TORCHELASTIC_RUN_ID") if environments else None
            folder = RunFolder(self._settings.options, run_id or self._settings.name, self._scratch)
            return by_flags(self._settings.options, folder, assignment)
        given = {rank: dict(environment) for rank, environment in environments.items()}
        return of_logs_dest(specs.reify(given), given)

    def _filtered(self) -> dict[int, FilteredFile]:
        options, decided = self._settings.options, self._destinations
        filters = {
            OUT: (decided.filtered_stdout, options.stdout_filters),
            ERR: (decided.filtered_stderr, options.stderr_filters),
        }
        return {fd: FilteredFile(path, texts, self._trouble) for fd, (path, texts) in filters.items() if path and texts}

    def _trouble(self, error: OSError) -> None:
        self._console.say(f"log files: {error.filename}: {error.strerror or error}; the processes go on")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks(Marks):
    """torch's prefixes: each process's own."""

    prefixes: Mapping[int, str]

    def of_teed(self, assignment: Assignment, local_rank: int) -> str:
        return self.prefixes.get(local_rank, default_prefix(self.role, local_rank))


def of_logs_dest(destinations: Any, environments: Mapping[int, Mapping[str, str]]) -> Destinations:
    """What torch's `LogsSpecs.reify` returned, with the environments that it has added to."""
    return Destinations(
        [
            WorkerLogs(
                stdout=_destination(destinations.stdouts[rank], rank in destinations.tee_stdouts),
                stderr=_destination(destinations.stderrs[rank], rank in destinations.tee_stderrs),
                environment={ERROR_FILE: environments[rank].get(ERROR_FILE, destinations.error_files.get(rank, ""))},
            )
            for rank in range(len(environments))
        ],
        destinations.filtered_stdout,
        destinations.filtered_stderr,
    )


def _destination(path: str, teed: bool) -> Destination:
    return Destination(path, shown=teed or not path, marked=teed and bool(path))


def _one_round(environments: Mapping[int, Mapping[str, str]]) -> Assignment:
    """What the logs need to know of a round: there is none here, unless the environments tell of one."""
    restarts = environments[0].get("TORCHELASTIC_RESTART_COUNT", "") if environments else ""
    count = len(environments)
    return Assignment(
        round=int(restarts) + 1 if restarts.isdecimal() else 1,
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        local_world_size=count,
        world_size=count,
        first_role_rank=0,
        role_world_size=count,
        master_addr="",
        master_port=0,
        restart_count=0,
        max_restarts=0,
    )
