"""Examines the workers of one node: state in the kernel, Python stacks, torch's flight recorder.

It is a program of its own because it may block. Reading from a process in uninterruptible sleep blocks, and so does a
folder on a file system that does not answer. One thread examines each worker and reports each finding at once. When the
time is over, the agent kills this program and keeps the findings reported so far.

The program reads one line of JSON (`Order` below) from its socket. It writes lines of JSON: {"rank", "state", "wchan"},
{"rank", "frames"}, {"rank", "collective"}, {"rank", "stderr"}, {"problem"}, {"flight_recorder"}, {"nccl"}, and
{"folder"} at the end, when all files are written.

It runs py-spy with `--nonblocking`, which does not pause the process: pausing a stopped process fails, and pausing one
in uninterruptible sleep never ends. Without py-spy it asks torch's worker server, if the worker has one. If that fails
and the worker was forked warm, it sends a signal, and the worker's faulthandler writes the stacks to a file. The signal
would kill a process that does not catch it. So the program sends it only if the kernel shows that the process catches
the signal and has the file open.

NCCL (2.24 and newer) reports the state of all communicators of the job at the port of its RAS subsystem. Every process
of the job would give the same answer. So only the node with rank 0 asks it, if a worker of this node listens there.
"""

import json
import os
import pickle
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

if not __package__:  # isolated and run by its path: this package would not be found
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from node_agent.features.evidence import words
from node_agent.kernel.processes.system_calls import pidfd_open, pidfd_send_signal

Order = dict[str, Any]
"""Request of the agent. `workers`: a list of objects with `rank`, `pid`, `server` (socket of torch's worker server),
`pipe` and `dump` (NCCL's), `stacks` (file for its stacks) and `stderr` (file of its stderr), each empty if there is
none. Also `signal` (makes the worker write its stacks), `folder`, `python` (command of an interpreter that may have
torch) and `limit_s`."""
Frames = list[tuple[str, str, int]]
"""Function, file and line, innermost first."""

LOOKS, BETWEEN_LOOKS_S = 3, 0.15
"""Number of looks at a process, and seconds between them. Short uninterruptible sleep is common, so it counts only if
each look finds it."""
STATES = {"T": "stopped", "t": "traced", "D": "uninterruptible", "Z": "ended", "X": "ended"}
HALTED = ("stopped", "traced", "uninterruptible", "ended")
TRIES = 3
"""Number of tries of py-spy, which may read a stack while it changes."""
MOST_THREADS = 64
MOST_TASKS = 256
MOST_BYTES = 16 << 20
STDERR_BYTES, STDERR_LINES = 16 << 10, 200
"""Most bytes and lines to read from the end of a worker's stderr."""
SIGNAL_SHARE = 0.4
"""Part of the remaining time that a worker has to write its stacks after the signal."""
WRITTEN_S = 1.0
"""Seconds without a further line after which stacks without `LAST_LINE` count as complete."""
LAST_LINE = re.compile(
    r'(?: in <module>|\.\.\.|/threading\.py", line \d+ in _shutdown|/util\.py", line \d+ in _exit_function)\n\Z'
)
"""Last line of the stacks that faulthandler writes: the outermost frame of the main thread, also at Python's exit.

In a function that `atexit` calls, the outermost frame can be any."""
MOST_FRAMES = 100
"""Most frames of a thread that faulthandler writes."""
CUT = ("...", "<cut>", 0)
"""Outermost frame of a stack that is too deep for faulthandler, which omits the rest."""
FAULTHANDLER_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
ENDS_WITH_FRAME = re.compile(r'(?m:^)  File ".*", line \d+ in .*\n\Z')
MARGIN_S = 0.3
"""Seconds before the deadline that are reserved for passing answers on."""
RAS_VARIABLE, RAS_ADDRESS = "NCCL_RAS_ADDR", "localhost:28028"
RAS_ANSWER_S = 1.0
"""Seconds to answer a line. A slower process is stopped, and the next connection may reach another one."""
RAS_BYTES = 1 << 20
LISTENS = "0A"
"""State of a listening socket in /proc/PID/net/tcp."""
FR_MARGIN_S = 2.0
"""Seconds that must be left to start the import of torch and the analysis."""


def main() -> None:
    """Examine the workers. argv: descriptor of the socket."""
    control = socket.socket(fileno=int(sys.argv[1]))
    with control.makefile("rb") as lines:
        order = json.loads(lines.readline())
    Examination(control, order).run()


class Examination:
    """One examination of all workers of the node."""

    def __init__(self, control: socket.socket, order: Order) -> None:
        self._control = control
        self._order = order
        self._until: float = time.monotonic() + order["limit_s"]
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}
        """Contents of the files to write, by name."""
        self._problems: set[str] = set()
        self._py_spy = find_py_spy()

    def run(self) -> None:
        left = list(self._order["workers"])
        threads = [threading.Thread(target=self._look_at_all, args=(left,)) for _ in left[:MOST_THREADS]]
        if any(worker["rank"] == 0 for worker in left):
            threads.append(threading.Thread(target=self._ask_nccl, args=([worker["pid"] for worker in left],)))
        for thread in threads:
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._left_s()))
        writer = threading.Thread(target=self._write_files, daemon=True)
        writer.start()
        writer.join(max(0.0, self._left_s()))
        if any(thread.is_alive() for thread in (*threads, writer)):
            self._problem(words.NOT_ALL_IN_TIME)
        self._control.shutdown(socket.SHUT_RDWR)
        os.killpg(0, signal.SIGKILL)  # all remaining threads, and the programs that they started

    def _left_s(self) -> float:
        return self._until - time.monotonic()

    def _tell(self, **what: object) -> None:
        with self._lock:
            self._control.sendall(json.dumps(what).encode() + b"\n")

    def _problem(self, text: str) -> None:
        if text not in self._problems:
            self._problems.add(text)
            self._tell(problem=text)

    def _keep(self, name: str, content: bytes | str) -> None:
        self._files[name] = content if isinstance(content, bytes) else content.encode(errors="replace")

    # One worker.

    def _look_at_all(self, left: list[dict[str, Any]]) -> None:
        """Examine one worker after another, until none is left that no other thread examines."""
        with suppress(IndexError):
            while True:
                worker = left.pop(0)
                try:
                    self._look_at(worker)
                except Exception as error:
                    self._problem(words.rank_failed(worker["rank"], f"{type(error).__name__}: {error}"))

    def _look_at(self, worker: dict[str, Any]) -> None:
        rank, pid = worker["rank"], worker["pid"]
        state = process_state(pid)
        self._tell(rank=rank, state=state, wchan=read(f"/proc/{pid}/wchan"))
        if state != "ended":
            self._stacks(worker, state)
            self._keep(f"rank_{rank}.kernel.txt", "".join(kernel_report(pid)))
            self._flight_recorder(worker, state)
        if lines := last_lines(worker["stderr"]):  # last, because its disk may hang
            self._tell(rank=rank, stderr=lines)

    def _stacks(self, worker: dict[str, Any], state: str) -> None:
        """Report and keep the worker's Python stacks, taken in the first way that works."""
        rank, why = worker["rank"], []
        for way, with_halted in ((self._by_py_spy, True), (self._by_worker_server, False), (self._by_signal, False)):
            if state in HALTED and not with_halted:
                continue
            try:
                text, frames = way(worker)
            except (OSError, ValueError) as error:
                if str(error):
                    why.append(f"{error}")
                continue
            self._tell(rank=rank, frames=frames)
            self._keep(f"rank_{rank}.stacks.txt", text)
            return
        if not self._py_spy:
            self._problem(words.NO_PY_SPY)
        if why:
            self._problem(words.no_stack(rank, why))

    def _by_py_spy(self, worker: dict[str, Any]) -> tuple[str, Frames]:
        if not self._py_spy:
            raise ValueError
        command = [self._py_spy, "dump", "--nonblocking", "--json", "--pid", str(worker["pid"])]
        error = ""
        for _ in range(TRIES):
            try:
                done = subprocess.run(command, capture_output=True, timeout=self._left_s() - MARGIN_S, check=False)
            except subprocess.TimeoutExpired:
                raise ValueError(words.PY_SPY_TOO_SLOW) from None
            if done.returncode == 0 and (threads := json.loads(done.stdout)):
                return text_of(threads), main_thread(threads, worker["pid"])
            error = py_spys_reason(done.stderr.decode(errors="replace"))
        raise ValueError(words.py_spy_failed(error or words.NO_THREAD))

    def _by_worker_server(self, worker: dict[str, Any]) -> tuple[str, Frames]:
        text = self._ask(worker, "dump_traceback").decode(errors="replace")
        return text, main_thread_of(text)

    def _by_signal(self, worker: dict[str, Any]) -> tuple[str, Frames]:
        pid, path, signum = worker["pid"], worker["stacks"], worker["signal"]
        if not path or not os.path.exists(path):
            raise ValueError  # it was not forked warm
        pidfd = pidfd_open(pid)
        try:
            if not (catches(pid, signum) and has_open(pid, path)):
                raise ValueError(words.SIGNAL_NOT_CAUGHT)
            before = os.path.getsize(path)
            pidfd_send_signal(pidfd, signum)
        finally:
            os.close(pidfd)
        text = self._written_upon_signal(path, before)
        return text, main_thread_of(text)

    def _written_upon_signal(self, path: str, before: int) -> str:
        """Return the stacks that faulthandler appends to a worker's file from byte `before` on.

        They are complete with `LAST_LINE`, or with a frame that is followed by `WRITTEN_S` seconds without output.
        """
        until, text, grew_at = time.monotonic() + self._left_s() * SIGNAL_SHARE, "", time.monotonic()
        while not LAST_LINE.search(text):
            if time.monotonic() > until:
                raise ValueError(words.SIGNAL_NOT_ANSWERED)
            time.sleep(0.02)
            with open(path, "rb") as file:
                file.seek(before)
                now = file.read(MOST_BYTES).decode(errors="replace")
            if len(now) > len(text):
                text, grew_at = now, time.monotonic()
            elif ENDS_WITH_FRAME.search(text) and time.monotonic() > grew_at + WRITTEN_S:
                break
        return text

    def _settled(self, path: str, before: int) -> bytes:
        """Return the text written to the file from this offset on, once the file stops growing."""
        size = before
        while self._left_s() > 0:
            time.sleep(0.1)
            now = os.path.getsize(path) if os.path.exists(path) else before
            if now > before and now == size:
                with open(path, "rb") as file:
                    file.seek(before)
                    return file.read(MOST_BYTES)
            size = now
        raise ValueError(words.nothing_came(path))

    def _ask(self, worker: dict[str, Any], handler: str) -> bytes:
        """Return the answer of torch's worker server. Raises `ValueError` without text if there is no server."""
        if not worker["server"] or not os.path.exists(worker["server"]):
            raise ValueError
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(max(0.1, min(3.0, self._left_s())))
            connection.connect(worker["server"])
            connection.sendall(f"POST /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            answer = b""
            while len(answer) < MOST_BYTES and self._left_s() > 0 and (chunk := connection.recv(1 << 16)):
                answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
            raise ValueError(words.worker_server_answers(head[:80].decode(errors="replace")))
        return body

    # NCCL's RAS.

    def _ask_nccl(self, pids: list[int]) -> None:
        """Ask the processes that share the port until one of them answers."""
        why, addresses = "", set()
        for pid in pids:
            with suppress(OSError):  # it has ended, or is another user's
                addresses |= ras_addresses(pid)
        for address in addresses:
            while self._left_s() > RAS_ANSWER_S + MARGIN_S:
                try:
                    text = ras_status(address, self._left_s() - MARGIN_S)
                except TimeoutError:
                    why = words.NO_PROCESS_IN_TIME
                    continue
                except (OSError, ValueError) as error:
                    why = str(error)
                    break
                self._keep("nccl_ras.txt", text)
                self._tell(nccl=ras_complaints(text))
                return
        if why:
            self._problem(words.ras_failed(why))

    # torch's flight recorder.

    def _flight_recorder(self, worker: dict[str, Any], state: str) -> None:
        rank = worker["rank"]
        if state in HALTED:
            return
        with suppress(OSError, ValueError):
            dump = json.loads(self._ask(worker, "fr_trace_json"))
            self._keep(f"flight_recorder/rank_{rank}", pickle.dumps(as_loaded_by_torch(dump)))
            if number := last_collective(dump):
                self._tell(rank=rank, collective=number)
        with suppress(OSError, ValueError):
            if worker["pipe"]:
                self._keep(f"flight_recorder/rank_{rank}", self._nccl_dump(worker))

    def _nccl_dump(self, worker: dict[str, Any]) -> bytes:
        """Return the dump of NCCL's watchdog, which writes it when its pipe receives data."""
        pipe = os.open(worker["pipe"], os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, b"1")
        finally:
            os.close(pipe)
        return self._settled(worker["dump"], 0)

    def _analyse(self) -> None:
        """Run torchfrtrace on the dumps, in a process with torch, and report its output."""
        folder = os.path.join(self._order["folder"], "flight_recorder")
        if not os.path.isdir(folder) or self._left_s() < FR_MARGIN_S:
            return
        command = [*self._order["python"], "-m", "torch.distributed.flight_recorder.fr_trace", folder]
        command += ["--prefix", "rank_", "--allow-incomplete-ranks"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=self._left_s() - MARGIN_S, check=False)
        except subprocess.TimeoutExpired:
            self._problem(words.analysis_too_slow(folder))
            return
        text = (done.stdout + done.stderr).decode(errors="replace")
        with open(os.path.join(folder, "torchfrtrace.txt"), "w") as file:
            file.write(text)
        if done.returncode:
            self._problem(words.analysis_failed(text.strip().rpartition("\n")[2][:400]))
        else:
            self._tell(flight_recorder=[line for line in text.splitlines() if line.strip()][-40:])

    def _write_files(self) -> None:
        folder = self._order["folder"]
        try:
            for name, content in list(self._files.items()):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                with open(path, "wb") as file:
                    file.write(content)
            if self._files:
                self._tell(folder=folder)
            self._analyse()
        except OSError as error:
            self._problem(words.files_missing(error.filename or folder, error.strerror or str(error)))


# The kernel's view.


def process_state(pid: int) -> str:
    """Return the state found by several looks: "alive", "stopped", "traced", "uninterruptible" or "ended"."""
    seen = set()
    for look in range(LOOKS):
        if look:
            time.sleep(BETWEEN_LOOKS_S)
        seen.add(STATES.get(stat_letter(pid), "alive"))
        if seen != {"uninterruptible"}:
            break
    return seen.pop() if len(seen) == 1 else "alive"


def stat_letter(pid: int) -> str:
    """Return the state letter in /proc/PID/stat, X if the process is gone.

    If the main thread has ended while others run, it is the letter of one of these.
    """
    letter, *fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["X"]
    if letter == "Z" and int(fields[16]) > 1:
        with suppress(OSError):
            threads = [thread for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int) if int(thread) != pid]
            letters = [_letter(f"/proc/{pid}/task/{thread}") for thread in threads]
            return next((each for each in letters if STATES.get(each) != "ended"), letter)
    return letter


def _letter(base: str) -> str:
    return (read(f"{base}/stat").rpartition(")")[2].split() or ["X"])[0]


def kernel_report(pid: int) -> Iterator[str]:
    """Yield the kernel's view of every thread: name, state, and where it sleeps."""
    with suppress(FileNotFoundError):
        for task in sorted(map(int, os.listdir(f"/proc/{pid}/task")))[:MOST_TASKS]:
            base = f"/proc/{pid}/task/{task}"
            letter = _letter(base)
            yield f"thread {task} ({read(f'{base}/comm')}): state {letter}, wchan {read(f'{base}/wchan')}\n"
            yield f"  syscall {read(f'{base}/syscall')}\n"
            yield "".join(f"  {line}\n" for line in read(f"{base}/stack").splitlines())


def catches(pid: int, signum: int) -> bool:
    """Return whether the process has a handler for this signal."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", read(f"/proc/{pid}/status"), re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (signum - 1) & 1)


def has_open(pid: int, path: str) -> bool:
    """Return whether the process has this file open. If not, the descriptor may belong to another file now."""
    return os.path.realpath(path) in open_files(pid)


def open_files(pid: int) -> Iterator[str]:
    """Yield the path, or kind and number, of each descriptor that the process has open."""
    descriptors = f"/proc/{pid}/fd"
    for descriptor in os.listdir(descriptors):
        with suppress(FileNotFoundError):  # just closed
            yield os.readlink(f"{descriptors}/{descriptor}")


def read(path: str, most_bytes: int = 1 << 16) -> str:
    """Return the file's text, empty if the file is gone or may not be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most_bytes).decode(errors="replace").strip()
    except OSError:
        return ""


def last_lines(path: str) -> list[str]:
    """Return the lines at the end of a file, none if it does not exist or is a pipe or a device."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return []
            file.seek(max(0, status.st_size - STDERR_BYTES))
            return file.read(STDERR_BYTES).decode(errors="replace").splitlines()[-STDERR_LINES:]
    except OSError:
        return []


# NCCL's RAS: lines of text over TCP, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html


def ras_addresses(pid: int) -> set[tuple[str, int]]:
    """Return the address at which this process itself listens for clients of NCCL's RAS, if any."""
    variables = dict(pair.partition("=")[::2] for pair in read(f"/proc/{pid}/environ").split("\0"))
    host, _, port = variables.get(RAS_VARIABLE, RAS_ADDRESS).rpartition(":")
    if not port.isdecimal():
        return set()
    tables = (read(f"/proc/{pid}/net/{table}", MOST_BYTES) for table in ("tcp", "tcp6"))
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{int(port):04X}") and row[3] == LISTENS}
    return {(host.strip("[]"), int(port))} if any(each in sockets for each in open_files(pid)) else set()


def ras_status(address: tuple[str, int], limit_s: float) -> str:
    """Return the status of the job's communicators. Raises `OSError`, or `ValueError` if the answer is not NCCL's."""
    until = time.monotonic() + limit_s
    with socket.create_connection(address, RAS_ANSWER_S) as connection, connection.makefile("rb") as lines:
        connection.sendall(b"CLIENT PROTOCOL 2\n")
        if not (answer := lines.readline(256)).upper().startswith(b"SERVER PROTOCOL "):
            raise ValueError(words.ras_answers(f"{address[0]}:{address[1]}", answer.decode(errors="replace").strip()))
        connection.sendall(b"TIMEOUT %d\n" % max(1, int(until - time.monotonic()) - 1))
        if (answer := lines.readline(256)).strip().upper() != b"OK":
            raise ValueError(words.ras_refuses_limit(answer.decode(errors="replace").strip()))
        connection.sendall(b"VERBOSE STATUS\n")
        connection.settimeout(max(0.1, until - time.monotonic()))
        return lines.read(RAS_BYTES).decode(errors="replace")


def ras_complaints(text: str) -> list[str]:
    """Return the lines of the sections with errors and warnings, without their headings."""
    complaints, is_one = [], False
    lines = [*text.splitlines(), ""]
    for line, following in pairwise(lines):
        if set(following) == {"="}:
            is_one = line.strip() in ("Errors", "Warnings")
        elif is_one and line.strip() and set(line) != {"="}:
            complaints.append(line.rstrip())
    return complaints[:40]


# Python stacks.


def find_py_spy() -> str:
    """Return the path of py-spy: in the PATH, beside this interpreter, or where its package is; empty if not found."""
    beside = os.path.dirname(sys.executable)
    if found := shutil.which("py-spy") or shutil.which("py-spy", path=beside):
        return found
    from importlib.metadata import PackageNotFoundError, files

    with suppress(PackageNotFoundError):
        for file in files("py-spy") or ():
            if file.name == "py-spy" and os.access(path := str(file.locate()), os.X_OK):
                return os.path.realpath(path)
    return ""


def py_spys_reason(stderr: str) -> str:
    """Return why py-spy failed, in its own words, without the backtrace."""
    lines = [line.strip() for line in stderr.partition("Stack backtrace")[0].splitlines()]
    said = [re.sub(r"^(Error|\d+): ", "", line) for line in lines if line and line != "Caused by:"]
    return ": ".join(said[:3])[:300]


def main_thread(threads: list[dict[str, Any]], pid: int) -> Frames:
    """Return the frames of the main thread. Raises `ValueError` if no thread is known to be the main thread.

    Before Python 3.11, py-spy reports no thread ids. The thread's name then counts.
    """
    if any(thread.get("os_thread_id") for thread in threads):
        found = [thread for thread in threads if thread.get("os_thread_id") == pid]
    else:
        found = [thread for thread in threads if len(threads) == 1 or thread.get("thread_name") == "MainThread"]
    if not found:
        raise ValueError(words.NO_MAIN_THREAD)
    return [(frame["name"], frame["filename"], frame["line"] or 0) for frame in found[0]["frames"]]


def text_of(threads: list[dict[str, Any]]) -> str:
    """Return the stacks of all threads as faulthandler writes them."""
    blocks = []
    for thread in threads:
        name = thread.get("thread_name") or "?"
        gil = ", has the GIL" if thread.get("owns_gil") else ""
        head = f"Thread {thread.get('os_thread_id')} ({name}{gil}) (most recent call first):"
        frames = [
            f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}' for frame in thread["frames"]
        ]
        blocks.append("\n".join([head, *frames]))
    return "\n\n".join(blocks) + "\n"


def main_thread_of(text: str) -> Frames:
    """Return the frames of the main thread. It is the oldest thread, which faulthandler writes last.

    If there are more than a hundred threads, faulthandler omits the last ones. The current thread then counts, since it
    takes signals.
    """
    frames: Frames = []
    current: Frames = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            frames = []
            current = frames if line.startswith("Current thread") else current
        elif line == "...":
            frames = current
        elif line == "  ...":
            frames.append(CUT)
        elif match := FAULTHANDLER_FRAME.match(line):
            frames.append((match[3], match[1], int(match[2])))
    if not frames:
        raise ValueError(words.NO_STACK_OF_MAIN_THREAD)
    if len(frames) == MOST_FRAMES:
        frames.append(CUT)  # Python 3.13 does not mark the cut
    return frames


# torch's dumps.


def as_loaded_by_torch(dump: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON dump as torchfrtrace expects it from a pickled one. Torch 2.13 omits names of gloo's groups."""
    entries = [{"frames": [], **entry, "process_group": tuple(entry["process_group"])} for entry in dump["entries"]]
    groups = dict(dump.get("pg_config") or {})
    nameless = {entry["process_group"] for entry in entries if entry["process_group"][0] not in groups}
    if "" in groups and len(nameless) == 1:
        name, description = nameless.pop()
        groups = {**groups, name: {**groups.pop(""), "name": name, "desc": description}}
    return {**dump, "entries": entries, "pg_config": groups}


def last_collective(dump: dict[str, Any]) -> int:
    """Return the number of the last collective that started in the default process group, 0 if none did."""
    own = [entry for entry in dump["entries"] if not entry["is_p2p"] and entry["process_group"][0] == "0"]
    return max((entry["collective_seq_id"] for entry in own), default=0)


if __name__ == "__main__":
    main()
