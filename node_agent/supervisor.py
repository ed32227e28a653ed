"""Supervisor of an agent: a process that outlives the agent and exits with the run's result (`--exit-with-run`).

A scheduler that started an agent looks at the agent's exit code. If the agent was killed, for example for lack of
memory, the scheduler may treat the whole job as failed. But an elastic run continues without that agent. So the
supervisor waits until the server reports the end of the run, and exits with the run's exit code.

While the agent lives, it sends its supervisor the number of its attempt. A later attempt of the run belongs to another
agent. A server that does not hear any agent of the run concludes nothing. So the supervisor then leaves the run for its
agent, of which only it knows that it is dead.

The supervisor adopts processes that the killed agent's workers have started. It ends those that the agent's guardian
cannot find: processes that have cleared their environment and left their session. If the guardian was killed with its
agent, the supervisor also ends those with the agent's mark.
"""

import asyncio
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, closing, suppress
from functools import partial
from importlib import import_module
from logging import ERROR, INFO, WARNING
from threading import Thread, Timer
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace
from rdzv_protocol.codec import encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import LeaveRequest
from rdzv_protocol.paths import LEAVE, MEDIA_TYPE, STATUS, WATCH

from node_agent import agent, words
from node_agent.features.supervised import Part, Supervised
from node_agent.kernel import early_signals, late_imports
from node_agent.kernel.config import Endpoint, LaunchPlan, UsageError
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.processes import orphans_helper
from node_agent.kernel.processes.orphans import GUARDIAN, adopt_orphans, children, end_until_none, family, reap
from node_agent.kernel.processes.orphans_helper import END_S, MARK, has_ended
from node_agent.kernel.processes.process import STDERR, tie_to_parent, to_handle

SILENCE_S = 15.0
"""Seconds of silence after which a server counts as gone. A server sends something every five seconds."""
PATIENCE_S = 30.0
"""Most seconds without a server that knows the run."""
WRITTEN_WITHIN_S = 1.0
"""Most seconds that the supervisor waits until the console has taken a line."""
RETRY_S = 0.5
"""Seconds before the servers are tried again."""
LOAD_AFTER_S = 1.0
"""Seconds after which the modules are imported, so that the agent's own start comes first."""
MODULES = (
    "encodings.idna", "node_agent.kernel.transport.connecting", "node_agent.kernel.transport.http_client",
    "node_agent.words.connection", "node_agent.words.supervisor", "rdzv_protocol.words.flags",
    "rdzv_protocol.words.tls", "urllib.parse",
)  # fmt: skip
"""Modules that are needed only after the agent's death. By then the program's disk may hang or hold another version."""
GUARDIAN_S = 10.0
"""Most seconds for which a killed agent's guardian is waited for. Usually it needs a few milliseconds."""
FORGOTTEN = "forgotten"
ENDS = {"succeeded": ExitCode.SUCCEEDED, "failed": ExitCode.FAILED}


def run(plan: LaunchPlan) -> int:
    """Run the agent in a child process and return its exit code, or the run's exit code if the agent is killed."""
    supervisor, is_reaper = os.getpid(), _becomes_reaper()
    awaited = {*to_handle(plan.config.signals), signal.SIGCHLD}
    # Block signals until the child leads its own session and this process forwards them. No signal is lost or arrives
    # twice.
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    agents, ours = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _become_agent(plan, supervisor, agents.fileno())
    agents.close()
    early_signals.release()  # a signal that came early is forwarded; the child holds it, too
    late_imports.end()
    _load_soon()
    code, has_forwarded = _attend(child, ours, awaited)
    if code >= 0:
        return code
    if is_reaper:
        _end_left()
        with suppress(OSError):  # no descriptor is left
            _wait_for_guardian()
        _end_left(child)  # a process may have dropped its mark before the guardian looked
    signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)  # the agent is gone: signals have their usual effect again
    name = signal.Signals(-code).name
    if has_forwarded or not plan.target.endpoint:
        _log(plan, words.supervisor.agent_killed(name))
        return 128 - code
    run_id = plan.config.join.run_id
    _log(plan, words.supervisor.agent_killed_run_awaited(name, run_id))
    end = _end_of_run(plan, _last_part(ours), name)
    if not end:
        return 128 - code
    for signum in awaited - {signal.SIGCHLD}:
        signal.signal(signum, signal.SIG_IGN)  # the exit code is decided
    _log(plan, words.supervisor.run_has_ended(run_id, end), INFO, f"run_{end}")
    return ENDS[end]


def _become_agent(plan: LaunchPlan, supervisor: int, link: int) -> NoReturn:
    """Run the agent in the child process, and exit.

    The child has a session of its own, so that a terminal's signals reach the agent only once. Signals stay blocked
    until the agent listens to them.
    """
    exit_code: int = ExitCode.FAILED
    try:
        os.setsid()
        tie_to_parent(supervisor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        features = (Supervised(link=link), *plan.config.features)
        exit_code = agent.run(replace(plan, config=replace(plan.config, features=features)))
    except UsageError as error:
        _log(plan, words.leaving.error(str(error)), ERROR)
        exit_code = ExitCode.BAD_INPUT
    except KeyboardInterrupt:  # SIGINT is none of the agent's signals
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None if it was closed before the program began
            with suppress(OSError):
                stream.flush()
        os._exit(exit_code)


def load() -> None:
    """Import the modules. An import that fails now is tried again when the module is needed."""
    with suppress(OSError, ImportError):
        for name in MODULES:
            import_module(name)


def _load_soon() -> None:
    """Import the modules in a thread, shortly after the agent's start. The main thread waits for signals."""
    timer = Timer(LOAD_AFTER_S, load)
    timer.daemon = True
    with suppress(RuntimeError):  # no thread can be started
        timer.start()


def _attend(child: int, agents: socket.socket, awaited: Collection[signal.Signals]) -> tuple[int, bool]:
    """Forward signals to the agent until it ends. The agent may also get them from the sender.

    Return the agent's exit code, negative for a signal, and whether any signal was forwarded. The signals are blocked
    and waited for, because a handler would not run if its signal came just before `wait` begins.
    """
    has_forwarded = False
    while True:
        signum = signal.sigwait(awaited)
        if signum == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), has_forwarded
        else:
            has_forwarded = True
            with suppress(OSError):  # the agent is gone, and its exit code remains this process's
                agents.send(bytes([signum]))


def _becomes_reaper() -> bool:
    """Adopt the processes that a killed agent leaves behind. Return False if this may adopt other processes too."""
    return os.getpid() != 1 and not children() and adopt_orphans()


def _end_left(agent: int = 0) -> None:
    """End the killed agent's processes that have no mark, or also those with the mark of this agent, given by its pid.

    Without the pid, this leaves the processes that the guardian ends to it. It never ends a guardian.
    """
    end_until_none(lambda: filter(partial(_is_left_by, agent), family(children())), END_S, {})


def _wait_for_guardian() -> None:
    """Wait until the guardian has ended the processes with its agent's mark, and then itself.

    Other processes are not waited for: a server that the agent has hosted runs until the run ends.
    """
    until = time.monotonic() + GUARDIAN_S
    while time.monotonic() < until and (guardian := next(filter(_is_guardian, children()), 0)):
        has_ended(guardian, until - time.monotonic())
        reap()


def _is_guardian(pid: int) -> bool:
    """Return whether a process is a guardian, by its environment. False for one that has ended."""
    with suppress(OSError):
        return GUARDIAN.encode() in _variables(pid)
    return False


def _is_left_by(agent: int, pid: int) -> bool:
    """Return whether a process has no mark, or the mark of the agent with this pid, and is no guardian.

    False if its environment cannot be read (another user's).
    """
    with suppress(OSError):
        variables = _variables(pid)
        mark = variables.get(MARK.encode())
        return GUARDIAN.encode() not in variables and (mark is None or mark.startswith(b"%d-" % agent))
    return False


def _variables(pid: int) -> dict[bytes, bytes]:
    """Return the environment of a process. Raises `OSError` for a zombie or another user's process."""
    return dict(entry.partition(b"=")[::2] for entry in orphans_helper.environment(pid))


def _last_part(agents: socket.socket) -> Part:
    """Return the last part that the dead agent took in the run."""
    data = b""
    with suppress(OSError):
        while received := agents.recv(1 << 16, socket.MSG_DONTWAIT):
            data += received
    *lines, _ = data.split(b"\n")
    return msgspec.json.decode(lines[-1], type=Part) if lines else Part()


def _end_of_run(plan: LaunchPlan, part: Part, signal_name: str) -> str:
    """Wait for the end of this attempt and return its last phase, empty if no server can report it any more.

    `part`: with attempt 0 for the first attempt that a server reports. `signal_name`: of the signal that has killed the
    agent.
    """
    return asyncio.run(_Inquiry(plan, part, signal_name).end())


class _Inquiry:
    """Questions to the run's servers about the end of the dead agent's attempt, and the leave in its place."""

    def __init__(self, plan: LaunchPlan, part: Part, signal_name: str) -> None:
        from node_agent.kernel.transport.own_files import OwnFiles

        assert plan.target.endpoint
        self._files = OwnFiles(plan.credentials)
        self._plan, self._part, self._signal_name = plan, part, signal_name
        self._servers = (plan.target.endpoint, *plan.target.others)
        self._run_id = plan.config.join.run_id

    async def end(self) -> str:
        heard_at = time.monotonic()
        attempt, has_left = self._part.attempt, self._part.attempt == 0
        while time.monotonic() < heard_at + PATIENCE_S:
            for server in self._servers:
                async with aclosing(self._phases(server)) as phases:
                    async for latest, phase, is_silent in phases:
                        if not 0 < attempt < latest:  # a lower number comes from a server that has lost its state
                            attempt = latest
                        elif (phase := await self._phase_of(server, attempt)) == FORGOTTEN:
                            _log(self._plan, words.supervisor.attempt_forgotten(self._run_id, attempt))
                            return ""
                        if phase in ENDS:
                            return phase
                        if is_silent and not has_left and latest == self._part.attempt:
                            has_left = await self._leave(server)
                        heard_at = time.monotonic()
            await asyncio.sleep(RETRY_S)
        _log(self._plan, words.supervisor.run_unknown(self._run_id, PATIENCE_S))
        return ""

    async def _leave(self, server: Endpoint) -> bool:
        """Leave the run for the dead agent. Return False if this server does not take that."""
        reason, part = words.supervisor.agent_killed(self._signal_name), self._part
        request = LeaveRequest(run_id=self._run_id, agent_id=part.agent_id, secret=part.secret, reason=reason)
        if not await self._answer(server, LEAVE, encode(request)):
            return False
        _log(self._plan, words.supervisor.has_left(self._run_id))
        return True

    async def _phases(self, server: Endpoint) -> AsyncGenerator[tuple[int, str, bool], None]:
        """Yield number and phase of the run's latest attempt each time this server sends something.

        The third value: whether the server does not hear any agent of the attempt.

        Stop when the server is gone or does not know the run.
        """
        attempt, phase, is_silent = 0, "", False
        async with aclosing(self._lines(server, WATCH)) as lines:
            async for line in lines:
                if not line.startswith(b"data: "):
                    continue
                run = _fields(line[6:]).get("run", {"phase": phase})
                attempt, phase = (run.get("attempt", attempt), run.get("phase", phase)) if run else (0, "")
                if not phase:
                    return
                if run and "health" in run:
                    found = run["health"] or {}
                    is_silent = "silent" in (found.get("state"), *(found.get("others") or ()))
                yield attempt, phase, is_silent

    async def _phase_of(self, server: Endpoint, attempt: int) -> str:
        """Return the phase of an earlier attempt, or `FORGOTTEN`; empty if the server has not answered."""
        runs = _fields(await self._answer(server, STATUS)).get("runs")
        phases = {run["attempt"]: run["phase"] for run in runs or ()}
        return "" if runs is None else phases.get(attempt, FORGOTTEN)

    async def _answer(self, server: Endpoint, path: str, body: bytes = b"") -> bytes:
        """Return this server's whole answer, empty if there is none."""
        return b"".join([line async for line in self._lines(server, path, body)])

    async def _lines(self, server: Endpoint, path: str, body: bytes = b"") -> AsyncGenerator[bytes, None]:
        """Yield the lines of this server's answer about the run as they arrive, none if it refuses or is unreachable.

        `body`: that of an agent's request; empty for a question.
        """
        from urllib.parse import quote

        from node_agent.kernel.transport.connecting import Connector
        from node_agent.kernel.transport.http_client import FAILURES, HttpConnection, authority

        token, headers = self._plan.credentials.token, [("Host", authority(*server))]
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        with suppress(Unreachable, *FAILURES):
            streams = await Connector(*server, self._files).open()
            with closing(HttpConnection(streams, MAX_MESSAGE_BYTES)) as http:
                if body:
                    sent = http.ask("POST", path, [*headers, ("Content-Type", MEDIA_TYPE)], body)
                else:
                    sent = http.ask("GET", f"{path}?run_id={quote(self._run_id, safe='')}", headers)
                head = await asyncio.wait_for(sent, SILENCE_S)
                if head.status_code == 401:
                    await self._files.has_other_token(token)
                rest = b""
                while head.status_code == 200 and (part := await asyncio.wait_for(http.part(), SILENCE_S)):
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        yield line
                yield rest


def _fields(text: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object, none if the text is cut off."""
    try:
        return dict(json.loads(text))
    except ValueError:
        return {"run": None}


def _log(plan: LaunchPlan, text: str, level: int = WARNING, event: str = "") -> None:
    lines, join = plan.config.lines, plan.config.join
    if level >= lines.lowest:
        line = lines.line(text, level, time.time(), {"run_id": join.run_id, "node_id": join.node_id, "event": event})
        _write(f"{line}\n".encode(errors="backslashreplace"))


def _write(line: bytes) -> None:
    """Write a line to stderr, without waiting forever for a console that takes nothing, such as a stopped terminal."""

    def write() -> None:
        with suppress(OSError):  # it was closed, or its reader is gone
            select.select([], [STDERR], [])  # the program before often leaves a terminal in a mode that does not wait
            os.write(STDERR, line)

    thread = Thread(target=write, name="stderr", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started
        write()
    else:
        thread.join(WRITTEN_WITHIN_S)
