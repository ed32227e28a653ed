"""Session of a command: its input, and the servers that it asks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rdzv_protocol.flag_values import address
from rdzv_protocol.shell import quoted

from rdzvctl import contexts, words
from rdzvctl.answers import Fields
from rdzvctl.client import DEFAULT_TIMEOUT_S, Client, Overview
from rdzvctl.contexts import FIELDS
from rdzvctl.errors import BadInput, CtlError, Refused, TooOld, Unreachable
from rdzvctl.output import Output
from rdzvctl.views import state
from rdzvctl.views.next_steps import MOST_NAMED
from rdzvctl.views.state import PROGRAM, Servers


class Session:
    """One command with its input: flags, environment, and the servers that they name."""

    def __init__(self, given: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.given = given
        self.environment = environment
        self.out = Output(environment, is_json=bool(given.get("json")))
        self.lacks_runs = False
        """Whether there may be runs that could not be learned."""
        self._client: Client | None = None
        self._unknown: list[str] = []
        self._servers: list[Fields] = []

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: object, error: object, *_: object) -> None:
        """Raise `Unreachable` after everything that could be shown, if something could not.

        Add the server's version to the error if it is too old for the command.
        """
        if isinstance(error, TooOld):
            raise TooOld(error.field, self.client.versions) from None
        if kind is None and self._unknown:
            raise Unreachable("; ".join(self._unknown))

    @property
    def client(self) -> Client:
        if self._client is None:
            target = contexts.choose({key: str(value) for key, value in self.given.items()}, self.environment)
            self._client = Client(target, self.given.get("timeout", DEFAULT_TIMEOUT_S), self.out.note)
        return self._client

    @property
    def endpoint(self) -> str:
        """Servers of this session, as in the `--endpoint` of agents on any machine."""
        return state.endpoint_of_agents([address(*each) for each in self.client.target.endpoints], self._servers)

    def overview(self, run_id: str | None = None, *, asks_all: bool = False) -> Overview:
        """Return the servers and runs. If something could not be learned, the command later ends with its exit code.

        `asks_all`: whether each server of the endpoint has to answer.
        """
        found = self.client.overview(run_id, asks_all=asks_all)
        self._unknown, self._servers = [*found.unknown, *found.silent], found.servers
        self.lacks_runs = bool(found.unknown)
        return found

    def changes(self, run_id: str | None) -> Iterator[Overview]:
        """Yield the overview now and after each change, forever."""
        for found in self.client.changes(run_id):
            self._servers = found.servers
            yield found

    @property
    def servers(self) -> Sequence[Fields]:
        """Servers that have last reported their status."""
        return self._servers

    @property
    def unhealthy_reason(self) -> str:
        """Sentences about servers that can decide nothing now, and why; empty if there are none."""
        return state.unhealthy_reason(self._servers)

    @property
    def program(self) -> str:
        """`rdzvctl` for a command that a person copies: with this command line's flags for the server."""
        flags = [f"--{name.replace('_', '-')} {quoted(str(self.given[name]))}"
                 for name in ("context", *FIELDS) if name in self.given]  # fmt: skip
        return " ".join([PROGRAM, *flags])

    @property
    def for_views(self) -> Servers:
        """The servers, for views of their runs."""
        return Servers(self.endpoint, state.cordons(self._servers), self.unhealthy_reason, self.program)

    def run(self, *, is_over: bool = False, needs_all: bool = False) -> Fields:
        """Return the requested run, else the only active one, or ended one if `is_over`.

        `needs_all`: whether it is the only one only if all runs are known. Raises `Refused`, `BadInput` or
        `Unreachable`.
        """
        if (run_id := self.given.get("run_id")) is not None:
            for run in self.overview(run_id).runs:
                return run
            raise self._no_such(run_id, [] if self._unknown else self.overview().runs)
        runs = self.overview().runs
        wanted = [run for run in runs if state.is_over(run) == is_over] or runs
        if self.lacks_runs and (needs_all or not runs):
            help_lines = [words.runs.name_one(*_named(wanted))] if wanted else []
            raise Unreachable("; ".join(self._unknown), *help_lines)
        if len(wanted) == 1:
            return wanted[0]
        if not runs:
            raise Refused(words.runs.NO_RUN, words.runs.start_one(self.endpoint))
        raise BadInput(words.runs.WHICH_RUN, words.runs.name_one(*_named(wanted)))

    @property
    def wanted(self) -> state.Wanted:
        """Filter for the requested runs."""
        given, run_id = self.given, str(self.given.get("run_id") or "")
        names = {name: str(given.get(name, "")).replace("-", "_") for name in ("phase", "health")}
        return state.Wanted(run_id, str(given.get("node", "")), **names)

    @property
    def names_one_run(self) -> bool:
        """Whether one run is requested by its id. Raises `BadInput` if a filter is given, too."""
        wanted = self.wanted
        if not wanted.pattern or any(sign in wanted.pattern for sign in "*?["):
            return False
        if wanted != state.Wanted(wanted.pattern):
            raise BadInput(words.runs.no_pattern(wanted.pattern))
        return True

    def _no_such(self, run_id: str, runs: Sequence[Fields]) -> CtlError:
        if self._unknown:
            return Unreachable(words.runs.unsure_of_run(run_id, self._unknown))
        there = words.runs.known_runs(*_named(runs)) if runs else words.runs.NONE_AT_ALL
        return Refused(words.runs.no_such_run(run_id, [run["run_id"] for run in runs]), there)


def _named(runs: Sequence[Fields]) -> tuple[list[str], int]:
    """Return the names of some runs, and how many more there are."""
    names = [quoted(run_id) for run_id in sorted(run["run_id"] for run in runs)[:MOST_NAMED]]
    return names, len(runs) - len(names)
