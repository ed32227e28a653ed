"""Collects the evidence of a hang on this node, before a deadline and without blocking the agent's loop.

A helper process does all work that may block. When the time is over, the agent kills the helper, and the helper's
reports so far are the evidence. A helper that hangs in the kernel and cannot be killed at once is left behind and
reaped later.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from rdzv_protocol.evidence import MOST_ERRORS, Evidence, Frame, LastError, ProcessState, StackGroup, bounded, frame
from rdzv_protocol.text import clip, last_lines, printable

from node_agent.features.evidence import STACKS_FILE, STACKS_SIGNAL, words
from node_agent.kernel.environment import FR_DUMP, NCCL_PIPE, WORKER_SERVER
from node_agent.kernel.failures.diagnose import last_error
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.process import STDERR, CommandProcess

HELPER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "examine_helper.py")
LONGEST_S = 20.0
"""Most seconds to collect evidence, even if more time is given."""
SHARE = 0.8
"""Part of the given time to use. The answer must also arrive in time."""
END_S = 0.5
"""Seconds that the helper has for its last reports before it is killed."""
KILL_TIMEOUT_S = 1.0
MOST_BYTES = 64 << 20
PROBLEM_BYTES, MOST_PROBLEMS = 1_000, 16
NCCL_LINE_BYTES, MOST_NCCL_LINES = 200, 16


class Target(Struct, frozen=True, kw_only=True):
    """One worker to examine."""

    rank: int
    pid: int
    step: int | None = None
    """Step that the worker reported last."""
    environment: Mapping[str, str] = {}
    """Its environment. Some variables name the ways to ask it."""
    stderr: tuple[str, ...] = ()
    """Last lines of its stderr, if the agent has read them."""
    stderr_file: str = ""
    """File that its stderr goes to, empty for none."""


class Found(Struct, kw_only=True):
    """The helper's findings about one worker."""

    state: str = "alive"
    wchan: str = ""
    frames: list[tuple[str, str, int]] = []
    collective: int | None = None
    stderr: list[str] = []
    """Last lines of the file of its stderr."""


async def gather(
    targets: Sequence[Target], folder: str, python: Sequence[str], environment: Mapping[str, str], remaining_s: float
) -> Evidence:
    """Return the evidence about these workers, within `remaining_s` seconds. Its files are in `folder`, which is made
    for them.

    `python`: the command of the workers' interpreter, which may have torch.
    """
    loop = asyncio.get_running_loop()
    began, limit_s = loop.time(), min(remaining_s * SHARE, LONGEST_S)
    order = {
        "workers": [_worker(target) for target in targets],
        "folder": folder,
        "python": list(python),
        "limit_s": max(0.1, limit_s - END_S),
    }
    report = Report()
    try:
        await _ask_helper(order, environment, limit_s, report)
    except OSError as error:
        report.problems.append(words.not_started(error.strerror or str(error)))
    return report.evidence(targets, loop.time() - began)


def _worker(target: Target) -> dict[str, Any]:
    """Return the description of a worker for the helper."""
    has, rank = target.environment, target.rank
    pipe, dump = has.get(NCCL_PIPE), has.get(FR_DUMP)
    return {
        "rank": rank,
        "pid": target.pid,
        "server": has.get(WORKER_SERVER, ""),
        "stacks": has.get(STACKS_FILE, ""),
        "signal": STACKS_SIGNAL,
        "pipe": f"{pipe}{rank}.pipe" if pipe and dump else "",
        "dump": f"{dump}{rank}",
        "stderr": target.stderr_file,
    }


async def _ask_helper(order: object, environment: Mapping[str, str], limit_s: float, report: "Report") -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    ended = asyncio.Event()

    def take(helper: Helper) -> None:
        """Read what has arrived. The examination is complete when the helper has ended or closed its end."""
        while not done.done():
            try:
                chunk = helper.socket.recv(1 << 16)
            except BlockingIOError:
                if helper.exit_code is None:
                    return
                chunk = b""
            except OSError:
                chunk = b""
            if not chunk or not report.take(chunk):
                done.set_result(None)

    def end(helper: Helper) -> None:
        take(helper)
        ended.set()

    def start(control: int) -> CommandProcess:
        command = [sys.executable, "-I", HELPER, str(control)]
        return CommandProcess(command, environment, STDERR, STDERR, pass_fds=[control])

    helper = Helper(start, end)
    helper.socket.setblocking(False)
    try:
        async with asyncio.timeout(limit_s):
            await loop.sock_sendall(helper.socket, json.dumps(order).encode() + b"\n")
            loop.add_reader(helper.socket, take, helper)
            await done
    except (TimeoutError, OSError):
        report.problems.append(words.not_all_within(limit_s))
    finally:
        if helper.socket.fileno() >= 0:
            loop.remove_reader(helper.socket)
        if not done.done():
            done.cancel()
        if helper.exit_code is None:
            helper.kill()
            with suppress(TimeoutError):  # the loop then reaps it when it ends
                await asyncio.wait_for(ended.wait(), KILL_TIMEOUT_S)


class Report:
    """The helper's findings, taken line by line."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._workers: dict[int, Found] = {}
        self._folder = ""
        self._flight_recorder: tuple[str, ...] = ()
        self._nccl: tuple[str, ...] = ()
        self._rest = b""
        self._taken = 0

    def take(self, chunk: bytes) -> bool:
        """Take what has arrived. Return whether more may follow."""
        self._taken += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._take_line(json.loads(line))
        return self._taken < MOST_BYTES

    def evidence(self, targets: Sequence[Target], took_s: float) -> Evidence:
        """Return the evidence from all findings so far."""
        return Evidence(
            groups=bounded(self._groups(targets)),
            folder=self._folder,
            problems=tuple(self._problems()),
            flight_recorder=self._flight_recorder,
            nccl=self._nccl,
            took_s=round(took_s, 3),
            errors=self._errors(targets),
        )

    def _take_line(self, record: dict[str, Any]) -> None:
        if "rank" in record:
            found = self._workers.setdefault(record.pop("rank"), Found())
            for name, value in record.items():
                setattr(found, name, value)
        elif "problem" in record:
            self.problems.append(record["problem"])
        elif "flight_recorder" in record:
            self._flight_recorder = last_lines([printable(line) for line in record["flight_recorder"]], 40, 1_000)
        elif "nccl" in record:
            self._nccl = tuple(clip(printable(line), NCCL_LINE_BYTES) for line in record["nccl"][:MOST_NCCL_LINES])
        else:
            self._folder = clip(printable(record["folder"]), 1_000)

    def _problems(self) -> Iterator[str]:
        for problem in self.problems[:MOST_PROBLEMS]:
            yield clip(printable(problem), PROBLEM_BYTES)

    def _errors(self, targets: Sequence[Target]) -> tuple[LastError, ...]:
        """Return the errors that show most about a cause: uncaught exceptions, then those of threads, and last
        consequences.
        """
        found = {target.rank: self._workers.get(target.rank, Found()).stderr for target in targets}
        last_errors = [last_error(each.rank, each.stderr or list(map(printable, found[each.rank]))) for each in targets]
        errors = [error for error in last_errors if error]
        return tuple(sorted(errors, key=_order_of_error)[:MOST_ERRORS])

    def _groups(self, targets: Sequence[Target]) -> list[StackGroup]:
        groups: dict[Any, list[int]] = {}
        wchans: dict[Any, str] = {}
        for target in targets:
            if (found := self._workers.get(target.rank)) is None:
                self.problems.append(words.rank_not_in_time(target.rank))
                continue
            frames: tuple[Frame, ...] = tuple(frame(*each) for each in found.frames)
            key = (frames, ProcessState(found.state), target.step, found.collective)
            groups.setdefault(key, []).append(target.rank)
            wchans.setdefault(key, clip(printable(found.wchan), 120))
        return [
            StackGroup(
                ranks=tuple(ranks[:1_024]),
                frames=frames,
                state=state,
                step=step,
                collective=collective,
                wchan=wchans[key] if wchans[key] not in ("", "0") else None,
            )
            for key, ranks in groups.items()
            for frames, state, step, collective in [key]
        ]


def _order_of_error(error: LastError) -> tuple[bool, bool, bool]:
    return not error.is_uncaught, error.is_consequence, not error.thread
