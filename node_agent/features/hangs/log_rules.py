"""Searches the workers' output for the patterns of `--log-rule`, in a separate process.

A pattern may take forever on some line, and a slow pattern may fall behind. Neither blocks the agent: the process gets
one batch of lines at a time, and a limited number of further lines waits here.
"""

import json
import os
import signal
import socket
import sys
from asyncio import TimerHandle, get_running_loop
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from errno import EAGAIN, EMFILE, ENFILE, ENOMEM

from msgspec import Struct

from node_agent.features.hangs import log_rules_helper, words
from node_agent.features.hangs.rule_source import LineMatch, LogRule
from node_agent.kernel.processes.helper import Helper
from node_agent.kernel.processes.process import STDERR, CommandProcess
from node_agent.kernel.processes.system_calls import memfd_create

CPU_S = 2.0
"""Seconds of processor time that all patterns together may take for one line."""
BATCH = 1 << 15
"""Characters of lines after which a batch is full. It must fit into the buffer of a socket."""
MOST_WAITING = 1 << 22
"""Most characters of waiting lines. Each line counts `LINE_COST` more."""
LINE_COST = 64
MOST_KILLS = 3
"""Most times in a row that a process which was killed before it answered is replaced. A line may cost it its memory."""
TEMPORARY = (EAGAIN, ENOMEM, EMFILE, ENFILE)
"""Errors of a start for which the machine or the user has too many processes or files, or too little memory, now."""
RETRY_S = 10.0
"""Seconds until the process is started again after such an error."""
READ_BYTES = 1 << 18
_ANSWER_LATER = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Line(Struct, frozen=True):
    """Line that a worker of a round has written at this time of the event loop's clock."""

    round: int
    local_rank: int
    text: str
    at: float


class LineMatcher:
    """Searches lines for the rules' patterns. The answers come in the order of the lines.

    `matched` is called with each match, `given_up` with the numbers of rules that are no longer used, and `lost` when
    lines were skipped. `warn` is called with a line about either problem.
    """

    def __init__(
        self,
        rules: Sequence[LogRule],
        environment: Mapping[str, str],
        matched: Callable[[Line, LineMatch], None],
        given_up: Callable[[set[int]], None],
        lost: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._rules = dict(enumerate(rules))
        """Rules in use, by number."""
        self._environment = environment
        self._matched, self._given_up, self._lost, self._warn = matched, given_up, lost, warn
        self._helper: Helper | None = None
        self._at = -1
        """Descriptor of the file in which the process notes the number of its current pattern."""
        self._asked: list[Line] = []
        self._waiting: deque[Line] = deque()
        self._waiting_cost = 0
        self._answer = b""
        self._is_behind = False
        self._kills = 0
        """Times that the process was killed since its last answer."""
        self._retry: TimerHandle | None = None
        """Timer of the next start, if the last one has failed for now."""
        self._has_retried = False
        self._is_stuck = False
        """Whether the process was killed here because its socket did not take a message."""

    @property
    def seen_until(self) -> float:
        """Time until which all output was searched, infinite if no line waits."""
        first = self._asked or self._waiting
        return first[0].at if first else float("inf")

    def put(self, lines: Sequence[Line]) -> None:
        """Take lines. They are skipped if too many wait."""
        if not self._rules:
            return
        cost = sum(map(_cost, lines))
        if self._waiting_cost + cost > MOST_WAITING:
            if not self._is_behind:
                self._is_behind = True
                self._warn(words.LINES_LEFT_OUT)
            self._lost()
            return
        self._waiting_cost += cost
        self._waiting.extend(lines)
        self._ask()

    def close(self) -> None:
        """End the process."""
        self._rules.clear()
        if self._retry:
            self._retry.cancel()
        if self._helper:
            self._helper.close()
        self._end()

    def _ask(self) -> None:
        """Send the next batch, unless one is under way."""
        if self._asked or not self._waiting or self._retry or not (self._helper or self._start()):
            return
        size = 0
        while self._waiting and size < BATCH:
            line = self._waiting.popleft()
            self._asked.append(line)
            self._waiting_cost -= _cost(line)
            size += len(line.text)
        self._send([line.text for line in self._asked])

    def _start(self) -> bool:
        def start(line: int) -> CommandProcess:
            command = (sys.executable, "-I", "-S", "-W", "ignore", log_rules_helper.__file__, str(self._at))
            return CommandProcess(command, self._environment, STDERR, STDERR, stdin=line, pass_fds=(self._at,))

        try:
            self._at = memfd_create("log-rules")
            os.ftruncate(self._at, log_rules_helper.NUMBER_BYTES)
            self._helper, self._is_stuck = Helper(start, self._ended), False
        except OSError as error:
            why = words.no_process(error.strerror or str(error))
            if error.errno in TEMPORARY:
                self._start_later(why)
            else:
                self._give_up(why)
            return False
        if self._has_retried:
            self._has_retried = False
            self._warn(words.MATCHES_AGAIN)
        self._helper.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * BATCH)
        self._helper.loop.add_reader(self._helper.socket, self._read)
        self._send([[[number, rule.pattern] for number, rule in self._rules.items()], CPU_S])
        return True

    def _start_later(self, why: str) -> None:
        """Let the lines wait. The rules expect no line before the time of the first one that waits."""
        self._end()
        if not self._has_retried:
            self._warn(words.starts_later(why, RETRY_S))
        self._has_retried = True
        self._retry = get_running_loop().call_later(RETRY_S, self._start_again)

    def _start_again(self) -> None:
        self._retry = None
        self._ask()

    def _send(self, message: object) -> None:
        assert self._helper
        data = json.dumps(message, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            sent = self._helper.socket.send(data, _ANSWER_LATER)
        except ConnectionError:
            return  # it is dead; its end will be noticed
        except OSError:
            sent = 0
        if sent < len(data):
            self._is_stuck = True
            self._helper.kill()

    def _read(self) -> None:
        assert self._helper
        try:
            chunk = self._helper.socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._answer += chunk
        if not chunk:
            self._helper.loop.remove_reader(self._helper.socket)  # its end will be noticed
        elif self._answer.endswith(b"\n"):
            asked, self._asked, self._kills = self._asked, [], 0
            matches, self._answer = json.loads(self._answer), b""
            for index, number, text, captured in matches:
                self._matched(asked[index], LineMatch(number, text, captured))
            self._ask()

    def _ended(self, helper: Helper) -> None:
        """Continue without the pattern that took too long, if that ended the process. Replace a process that others
        have killed.
        """
        number = int.from_bytes(os.pread(self._at, log_rules_helper.NUMBER_BYTES, 0), sys.byteorder)
        self._end()
        self._kills += helper.exit_code == -signal.SIGKILL
        if helper.exit_code == -signal.SIGVTALRM and number in self._rules:
            pattern = self._rules.pop(number).pattern
            self._warn(words.pattern_too_slow(pattern, CPU_S))
            self._given_up({number})
            self._ask_again()
        elif helper.exit_code == -signal.SIGKILL and self._kills <= MOST_KILLS and not self._is_stuck:
            self._warn(words.PROCESS_REPLACED)
            self._ask_again()
        else:
            self._give_up(words.process_ended(helper.exit_code))

    def _ask_again(self) -> None:
        self._waiting.extendleft(reversed(self._asked))
        self._waiting_cost += sum(map(_cost, self._asked))
        self._asked = []
        self._ask()

    def _give_up(self, why: str) -> None:
        self._warn(words.rules_given_up(why))
        numbers = set(self._rules)
        self._rules.clear()
        self._end()
        self._given_up(numbers)

    def _end(self) -> None:
        if self._at >= 0:
            os.close(self._at)
        self._helper, self._at, self._answer = None, -1, b""
        if not self._rules:
            self._asked, self._waiting_cost = [], 0
            self._waiting.clear()


def _cost(line: Line) -> int:
    return len(line.text) + LINE_COST
