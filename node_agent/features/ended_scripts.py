"""Finds workers whose script an exception has ended, while a thread that is not a daemon keeps their process alive.

The other workers then wait in a collective until its timeout. Two signs must agree, because healthy workers may show
one of them. The worker is silent since it has written an uncaught exception, marked by torch, to stderr. The stack of
its main thread shows that Python waits before it exits. The stack needs py-spy, torch's worker server or warm workers.

The agent must read both streams through pipes. It does not see at once when a worker writes into a file.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol.messages import Assignment, EndedScript, PollRequest
from rdzv_protocol.text import clip

from node_agent.kernel.core.effects import Level
from node_agent.kernel.feature import Feature, Kernel, StartedWorkers
from node_agent.kernel.tasks import spawn
from node_agent.kernel.threads import in_thread
from node_agent.kernel.workers.group import UNCAUGHT_MARK, Worker

SILENT_S = 30.0
"""Least seconds of silence after the exception. A short wait for a thread is common, for example to save."""
MOST_PAUSE_S = 600.0
"""Most seconds between two examinations of a silent worker whose script has not ended."""
LOOK_WITHIN_S = 5.0
"""Most seconds to read a stack."""
MOST_BYTES = 512
"""Most bytes of the exception."""


class Examination(Struct, frozen=True):
    """The last examination of a worker whose script had not ended."""

    silent_since: float
    pause_s: float
    again_at: float
    """Time at which the worker is examined again, if it is still silent."""


class EndedScripts(Feature):
    """Looks for such workers when the agent polls, at most once in `SILENT_S`."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._found: tuple[Worker, EndedScript, float] | None = None
        """Worker, report about it, and the time of its last output or progress."""
        self._examined: dict[int, Examination] = {}
        """Examined workers that have been silent since, by pid."""
        self._looks: set[asyncio.Task[None]] = set()
        """The look under way, and cancelled ones that still end their helper."""
        self._look_at = 0.0
        """Time of the next look."""

    def started(self, assignment: Assignment, pids: object) -> None:
        self._forget()

    def stopping(self) -> None:
        self._forget()

    async def close(self) -> None:
        self._forget()
        await asyncio.gather(*self._looks, return_exceptions=True)

    def _forget(self) -> None:
        for look in self._looks:
            look.cancel()
        self._found, self._examined = None, {}
        self._look_at = asyncio.get_running_loop().time() + SILENT_S

    def polling(self, request: PollRequest, now: float) -> PollRequest:
        started = self.kernel.started
        found = self._newest(started, now) if started else None
        return replace(request, ended_script=found) if found else request

    def _newest(self, started: StartedWorkers, now: float) -> EndedScript | None:
        """Return the worker that was found, if it has shown no sign of life since; else look again if it is time."""
        if self._found:
            worker, found, silent_since = self._found
            if worker in started.group.workers and _last_sign_at(worker, started, now) <= silent_since:
                return found
            self._found = None
        if now >= self._look_at and not self._looks:
            self._look_at = now + SILENT_S
            spawn(self._search(started, now), self._looks)
        return None

    async def _search(self, started: StartedWorkers, now: float) -> None:
        """Look at the workers that have been silent for long. An error of this search must not end the workers."""
        try:
            for worker in started.group.workers:
                silent_since = _last_sign_at(worker, started, now)
                if now - silent_since >= SILENT_S and (error := await self._ended_with(worker, silent_since, now)):
                    report = EndedScript(round=started.assignment.round, rank=worker.spec.rank, error=error)
                    self._found = worker, report, silent_since
                    return
        except Exception as error:
            from node_agent.features import words

            self._look_at = inf
            self.kernel.console.log(words.ended_scripts_unknown(type(error).__name__, str(error)), Level.ERROR)

    async def _ended_with(self, worker: Worker, silent_since: float, now: float) -> str:
        """Return the exception that has ended the script of this silent worker, empty if it has not ended so."""
        last = self._examined.get(worker.pid)
        if last and last.silent_since != silent_since:
            last = None
        error = _uncaught_error(worker, silent_since) if last is None or now >= last.again_at else ""
        if error and not await self._waits_to_exit(worker):
            pause_s = min(2.0 * last.pause_s, MOST_PAUSE_S) if last else SILENT_S
            self._examined[worker.pid] = Examination(silent_since, pause_s, now + pause_s)
            return ""
        return error

    async def _waits_to_exit(self, worker: Worker) -> bool:
        """Return whether the stack of the worker's main thread shows that its script has ended."""
        from shutil import rmtree

        from rdzv_protocol.evidence import has_ended_script

        from node_agent.features.evidence import STACKS_FILE
        from node_agent.features.evidence.gather import Target, gather
        from node_agent.kernel.environment import WORKER_SERVER
        from node_agent.kernel.processes.temp_dir import temporary_path

        ways = {name: worker.spec.environment.get(name, "") for name in (STACKS_FILE, WORKER_SERVER)}
        target = Target(rank=worker.spec.rank, pid=worker.pid, environment=ways)
        folder = await in_thread(partial(temporary_path, "node-agent-look"))
        try:
            evidence = await gather([target], folder, (), self.kernel.config.environment, LOOK_WITHIN_S)
        finally:
            await in_thread(partial(rmtree, folder, ignore_errors=True))
        return any(has_ended_script(group.frames) for group in evidence.groups)


def _last_sign_at(worker: Worker, started: StartedWorkers, now: float) -> float:
    """Return the time of the worker's last output that the agent has read, or of its last progress."""
    return max(worker.last_output_at, started.progress.last_times(now).get(worker.spec.local_rank, 0.0))


def _uncaught_error(worker: Worker, silent_since: float) -> str:
    """Return the uncaught exception, marked by torch, with which the worker's output has ended; empty if there is none.

    Later output on stdout, or later progress, shows that the script has continued.
    """
    from node_agent.kernel.failures.diagnose import last_error
    from node_agent.kernel.failures.recorded_causes import LAST_SIGN_S

    written_at, lines = worker.last_stderr_at, worker.stderr_tail
    if written_at is None or silent_since > written_at + LAST_SIGN_S or not _ends_with_exception(worker, lines):
        return ""
    error = last_error(worker.spec.rank, lines)
    return clip(error.error, MOST_BYTES) if error and error.is_uncaught else ""


def _ends_with_exception(worker: Worker, lines: Sequence[str]) -> bool:
    """Return whether the last line is of an uncaught exception that torch has marked with the worker's rank."""
    last = next((line for line in reversed(lines) if line), "")
    return last.startswith(f"{UNCAUGHT_MARK}{worker.spec.rank}]:")
