"""Supervisor of an agent: a process that outlives it, and exits as the run does (`--exit-with-run`).

A scheduler that started an agent looks at its exit code, and may call the whole job failed if it was killed: the kernel
was out of memory, somebody sent SIGKILL. An elastic run goes on without that agent, so its supervisor waits for the end
of the run, of which the server tells it when it comes, and has that for its own exit code. While the agent lives it
tells its supervisor which attempt of the run it is part of: a later attempt is another agent's.

It adopts what the killed agent's workers have started, and ends what the agent's guardian cannot know: processes that
have cleared their environment and left their session.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from importlib import import_module
from logging import ERROR, INFO, WARNING
from threading import Timer
from typing import TYPE_CHECKING, Any, NoReturn

from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.paths import STATUS, WATCH

from node_agent import agent, words
from node_agent.kernel import late_imports
from node_agent.kernel.config import LaunchPlan, UsageError
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.workers.orphans import MARK, MOST_LOOKS, adopt_orphans, children, family, reap
from node_agent.kernel.workers.orphans_helper import EMPTY_LOOKS, END_S, began, end
from node_agent.kernel.workers.process import tie_to_parent, to_handle

if TYPE_CHECKING:
    from rdzv_protocol.service_manager import ServiceManager

SILENCE_S = 15.0
"""Seconds of silence after which a server counts as gone: it sends something every five seconds."""
PATIENCE_S = 30.0
"""Time that there may be no server which knows the run."""
RETRY_S = 0.5
"""Pause before the servers are tried again."""
LOAD_AFTER_S = 1.0
"""Seconds after which the modules are imported: the agent's own start comes first."""
MODULES = (
    "encodings.idna", "node_agent.kernel.transport.connecting", "node_agent.kernel.transport.http_client",
    "node_agent.words.connection", "node_agent.words.supervisor", "rdzv_protocol.words.flags",
    "rdzv_protocol.words.tls", "urllib.parse",
)  # fmt: skip
"""Modules that only an agent's death needs. By then the disk with the program may hang, or have another version."""
FORGOTTEN = "forgotten"
ENDS = {"succeeded": ExitCode.SUCCEEDED, "failed": ExitCode.FAILED}


def run(plan: LaunchPlan, manager: "ServiceManager | None" = None) -> int:
    """Exit code of an agent in a process of its own; if that is killed, of the run that goes on without it."""
    supervisor, is_reaper = os.getpid(), _becomes_reaper()
    awaited = {*to_handle(plan.config.signals), signal.SIGCHLD}
    # Until the child leads its own session, and this process forwards: no signal gets lost, or arrives twice.
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    agents, ours = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        _become_agent(plan, manager, supervisor, awaited, agents.fileno())
    agents.close()
    late_imports.end()
    _load_soon()
    code, has_forwarded = _attend(child, ours, awaited)
    if code >= 0:
        return code
    if is_reaper:
        _end_unmarked()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)  # the agent is gone: they have their usual effect again
    name = signal.Signals(-code).name
    if has_forwarded or not plan.target.endpoint:
        _log(plan, words.supervisor.agent_killed(name))
        return 128 - code
    run_id = plan.config.join.run_id
    _log(plan, words.supervisor.agent_killed_run_awaited(name, run_id))
    exit_code = _verdict(plan, _last_attempt(ours))
    return 128 - code if exit_code is None else exit_code


def _become_agent(
    plan: LaunchPlan,
    manager: "ServiceManager | None",
    supervisor: int,
    blocked: Iterable[signal.Signals],
    link: int,
) -> NoReturn:
    """Run the agent in the child, and exit. The child's session is its own: a terminal's signals reach it once."""
    exit_code: int = ExitCode.FAILED
    try:
        os.setsid()
        tie_to_parent(supervisor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        exit_code = agent.run(plan, manager, link)
    except UsageError as error:
        _log(plan, words.leaving.error(str(error)), ERROR)
        exit_code = ExitCode.BAD_INPUT
    except KeyboardInterrupt:  # before the agent's own handlers stood
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def load() -> None:
    """Import the modules. What cannot be imported now is tried again when it is needed."""
    with suppress(OSError, ImportError):
        for name in MODULES:
            import_module(name)


def _load_soon() -> None:
    """Import the modules a moment after the agent's start, in a thread: this one waits for signals."""
    timer = Timer(LOAD_AFTER_S, load)
    timer.daemon = True
    with suppress(RuntimeError):  # no thread can be started
        timer.start()


def _attend(child: int, agents: socket.socket, awaited: Collection[signal.Signals]) -> tuple[int, bool]:
    """Forward signals to the agent, which may get them from their sender, too, until it ends.

    Return its exit code, negative for a signal, and whether any signal was forwarded. The signals are blocked, and
    waited for. A handler would not run if its signal came just before a wait for the child begins.
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
            with suppress(OSError):  # the agent is gone, and its exit code stays this process's
                agents.send(bytes([signum]))


def _becomes_reaper() -> bool:
    """Adopt what an agent that is killed leaves behind. Return False if other programs' processes may come along."""
    return os.getpid() != 1 and not children() and adopt_orphans()


def _end_unmarked() -> None:
    """End what the killed agent has left, except for processes with its mark: its guardian, and what that ends."""
    empty_looks = 0
    for _ in range(MOST_LOOKS):
        found = {pid: began(pid) for pid in family(children()) if not _has_a_mark(pid)}
        strays = {pid: when for pid, when in found.items() if when >= 0}
        end(strays, END_S)
        reap()
        empty_looks = 0 if strays else empty_looks + 1
        if empty_looks == EMPTY_LOOKS:
            break


def _has_a_mark(pid: int) -> bool:
    """Whether a process carries the mark of any agent, or is another user's, whose environment cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return any(entry.startswith(f"{MARK}=".encode()) for entry in environ.read().split(b"\0"))
    except OSError:
        return True


def _last_attempt(agents: socket.socket) -> int:
    """Return the attempt of the run that the agent, which is gone, was part of; 0: of none yet."""
    told = b""
    with suppress(OSError):
        while received := agents.recv(1 << 16, socket.MSG_DONTWAIT):
            told += received
    return int.from_bytes(told[-agent.ATTEMPT_BYTES :], "big")


def _verdict(plan: LaunchPlan, attempt: int) -> int | None:
    """Exit code of this attempt of the plan's run when it has ended; None if nobody can tell any more how it ended.

    `attempt` 0: the first one of which a server tells.
    """
    assert plan.target.endpoint
    run_id, heard_at = plan.config.join.run_id, time.monotonic()
    while time.monotonic() < heard_at + PATIENCE_S:
        for server in (plan.target.endpoint, *plan.target.others):
            for latest, phase in _phases(plan, *server):
                if not 0 < attempt < latest:  # a lower one is of a server that has lost its state
                    attempt = latest
                elif (phase := _phase_of(plan, *server, attempt)) == FORGOTTEN:
                    _log(plan, words.supervisor.attempt_forgotten(run_id, attempt))
                    return None
                if phase in ENDS:
                    _log(plan, words.supervisor.run_has_ended(run_id, phase), INFO, f"run_{phase}")
                    return ENDS[phase]
                heard_at = time.monotonic()
        time.sleep(RETRY_S)
    _log(plan, words.supervisor.run_unknown(run_id, PATIENCE_S))
    return None


def _phases(plan: LaunchPlan, host: str, port: int) -> Iterator[tuple[int, str]]:
    """Number and phase of the run's latest attempt whenever this server says anything.

    It ends when the server goes, or does not know the run.
    """
    attempt, phase = 0, ""
    for line in _answer(plan, host, port, WATCH):
        if line.startswith(b"data: "):
            run = _fields(line[6:]).get("run", {"phase": phase})
            attempt, phase = (run.get("attempt", attempt), run.get("phase", phase)) if run else (0, "")
            if not phase:
                return
            yield attempt, phase


def _phase_of(plan: LaunchPlan, host: str, port: int, attempt: int) -> str:
    """Phase of an earlier attempt of the run, or `FORGOTTEN`; empty if the server has not answered."""
    runs = _fields(b"".join(_answer(plan, host, port, STATUS))).get("runs")
    phases = {run["attempt"]: run["phase"] for run in runs or ()}
    return "" if runs is None else phases.get(attempt, FORGOTTEN)


def _fields(text: bytes) -> dict[str, Any]:
    """Fields of a JSON object; none if it is cut off."""
    try:
        return dict(json.loads(text))
    except ValueError:
        return {"run": None}


def _answer(plan: LaunchPlan, host: str, port: int, path: str) -> Iterator[bytes]:
    """Lines of what this server answers about the run, as they come; none if it refuses, or is not there."""
    from urllib.parse import quote

    from node_agent.kernel.transport.connecting import Connector
    from node_agent.kernel.transport.http_client import FAILURES, HttpConnection, authority

    token, headers = plan.credentials.token, [("Host", authority(host, port))]
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    with suppress(Unreachable, *FAILURES), asyncio.Runner() as runner:
        streams = runner.run(Connector(host, port, plan.credentials).open())
        with closing(HttpConnection(streams, MAX_MESSAGE_BYTES)) as http:
            asked = f"{path}?run_id={quote(plan.config.join.run_id, safe='')}"
            head = runner.run(asyncio.wait_for(http.ask("GET", asked, headers), SILENCE_S))
            if head.status_code == 401:
                plan.credentials.renew(token)
            rest = b""
            while head.status_code == 200 and (part := runner.run(asyncio.wait_for(http.part(), SILENCE_S))):
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
            yield rest


def _log(plan: LaunchPlan, text: str, level: int = WARNING, event: str = "") -> None:
    lines, join = plan.config.lines, plan.config.join
    if level >= lines.lowest:
        line = lines.line(text, level, time.time(), {"run_id": join.run_id, "node_id": join.node_id, "event": event})
        print(line, file=sys.stderr, flush=True)  # noqa: T201
