"""Supervisor of an agent: a process that outlives it, and exits as the run does (`--exit-with-run`).

A scheduler that started an agent looks at its exit code, and may call the whole job failed if it was killed: the kernel
was out of memory, somebody sent SIGKILL. An elastic run goes on without that agent, so its supervisor waits for the end
of the run, which it asks the server for, and has that for its own exit code.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable
from logging import ERROR, INFO, WARNING
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from rdzv_protocol.exit_codes import ExitCode

from node_agent import agent
from node_agent.config import Endpoint, LaunchPlan, UsageError
from node_agent.workers.process import tie_to_parent

if TYPE_CHECKING:
    from rdzv_protocol.service_manager import ServiceManager

ASK_EVERY_S = 1.0
"""Less than the time that a server with `--exit-when-idle` goes on after a run that has lost a node."""
PATIENCE_S = 30.0
"""Time that a server which has answered may be away; one that has not is asked once."""
ENDS = {"succeeded": ExitCode.SUCCEEDED, "failed": ExitCode.FAILED}


def run(plan: LaunchPlan, manager: "ServiceManager | None" = None) -> int:
    """Exit code of an agent in a process of its own; if that is killed, of the run that goes on without it."""
    supervisor = os.getpid()
    handled = [signal.Signals[name] for name in plan.config.signals]
    # Until the child leads its own session, and this process forwards: no signal gets lost, or arrives twice.
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    child = os.fork()
    if child == 0:
        _become_agent(plan, manager, supervisor, handled)
    forwarding = _Forwarding(child, handled)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        return code
    forwarding.ends()
    name = signal.Signals(-code).name
    if forwarding.has_forwarded or not plan.target.endpoint:
        _say(plan, f"the agent was killed ({name})")
        return 128 - code
    run_id = plan.config.join.run_id
    _say(plan, f"the agent was killed ({name}); waiting for the end of run {run_id}, which may go on without it")
    exit_code = _Verdict(plan).wait()
    return 128 - code if exit_code is None else exit_code


def _become_agent(
    plan: LaunchPlan, manager: "ServiceManager | None", supervisor: int, handled: Iterable[signal.Signals]
) -> NoReturn:
    """In the child: run the agent, and exit. Its session is its own, so that a terminal's signals reach it once."""
    exit_code: int = ExitCode.FAILED
    try:
        os.setsid()
        tie_to_parent(supervisor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        exit_code = agent.run(plan, manager)
    except UsageError as error:
        _say(plan, f"error: {error}", ERROR)
        exit_code = ExitCode.BAD_INPUT
    except KeyboardInterrupt:  # before the agent's own handlers stood
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


class _Forwarding:
    """Signals that are sent to this process go to the child."""

    def __init__(self, child: int, handled: Iterable[signal.Signals]) -> None:
        self.has_forwarded = False
        self._child = child
        self._handled = [each for each in handled if signal.getsignal(each) is not signal.SIG_IGN]  # nohup stays nohup
        for signum in self._handled:
            signal.signal(signum, self._forward)

    def ends(self) -> None:
        """Let the signals have their usual effect again: the child is gone."""
        for signum in self._handled:
            signal.signal(signum, signal.SIG_DFL)

    def _forward(self, signum: int, frame: FrameType | None) -> None:
        self.has_forwarded = True
        os.kill(self._child, signum)


class _Verdict:
    """End of the plan's run, as its server tells it."""

    def __init__(self, plan: LaunchPlan) -> None:
        assert plan.target.endpoint
        self._plan = plan
        self._servers: tuple[Endpoint, ...] = (plan.target.endpoint, *plan.target.others)
        self._name = f"run {plan.config.join.run_id}"

    def wait(self) -> int | None:
        """Exit code of the run when it has ended; None if nobody can tell any more how it ended."""
        answered_at = time.monotonic()
        while True:
            phase = self._phase()
            if phase in ENDS:
                _say(self._plan, f"{self._name} has {phase}", INFO, f"run_{phase}")
                return ENDS[phase]
            now = time.monotonic()
            if phase:
                answered_at = now
            elif now - answered_at > PATIENCE_S:
                _say(self._plan, f"no server has known {self._name} for {PATIENCE_S:g} s: how it ended cannot be told")
                return None
            time.sleep(ASK_EVERY_S)

    def _phase(self) -> str:
        """Phase of the run; empty if no server knows it at present."""
        for host, port in self._servers:
            if phase := self._ask(host, port):
                return phase
        return ""

    def _ask(self, host: str, port: int) -> str:
        import json
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import quote

        from rdzv_protocol.paths import STATUS

        credentials = self._plan.credentials
        try:
            tls = credentials.context()
            http = (
                HTTPSConnection(host, port, timeout=5.0, context=tls)
                if tls
                else HTTPConnection(host, port, timeout=5.0)
            )
            headers = {"Authorization": f"Bearer {credentials.token}"} if credentials.token else {}
            http.request("GET", f"{STATUS}?run_id={quote(self._plan.config.join.run_id, safe='')}", headers=headers)
            answer = http.getresponse()
            body = answer.read()
            http.close()
            if answer.status == 401:
                credentials.renew(credentials.token)
            runs = json.loads(body)["runs"] if answer.status == 200 else []
            return str(runs[0]["phase"]) if runs else ""
        except (OSError, HTTPException, ValueError, LookupError, TypeError):
            return ""


def _say(plan: LaunchPlan, text: str, level: int = WARNING, event: str = "") -> None:
    lines, join = plan.config.lines, plan.config.join
    if level >= lines.lowest:
        line = lines.line(text, level, time.time(), {"run_id": join.run_id, "node_id": join.node_id, "event": event})
        print(line, file=sys.stderr, flush=True)  # noqa: T201
