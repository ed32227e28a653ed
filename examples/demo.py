"""Two nodes on one machine train together, one worker is killed, and the run recovers (`make demo`).

It starts a rendezvous server and two agents with two workers each, and shows their output. After a few epochs it kills
a worker with SIGKILL. The server charges one restart, and all four workers start again from the checkpoint.

The agents have warm workers (`--preload`), so that the restart needs none of the imports of the start. `--cold` shows
it without. The demo exits 0 only if the training reached its accuracy with exactly one restart. It leaves no process
behind.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN_ID = "digits-demo"
NODES = ("node-a", "node-b")
NPROC = 2
PRELOAD = "torch._dynamo,torch.distributed.nn,sklearn.datasets"  # the imports of train_digits.py that take long
TARGET_ACCURACY = 0.95
STOP_GRACE_S = 10.0  # after SIGTERM, and again after SIGKILL

# The workers share this machine's processor and use no GPU: both agents would take GPU 0.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}

COLOURS = {"plain": "0", "dim": "2", "good": "1;32", "bad": "1;31", "node-a": "36", "node-b": "35"}
IN_COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
STARTED = time.monotonic()


def show(text: str, style: str = "plain") -> None:
    """Print a line with the seconds since the demo began."""
    line = f"{time.monotonic() - STARTED:6.2f} s  {text}"
    print(f"\033[{COLOURS[style]}m{line}\033[0m" if IN_COLOUR else line, flush=True)


class DemoFailed(Exception):
    """The demo cannot continue. The message says why."""


class Program:
    """A child process in a separate process group. Leaving the `async with` always stops it."""

    def __init__(self, name: str, on_line: Callable[[str, str], None], *command: str) -> None:
        self.name = name
        self.last_lines: deque[str] = deque(maxlen=30)
        self._on_line = on_line
        self._command = (sys.executable, *command)

    async def __aenter__(self) -> "Program":
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=ROOT, env=ENVIRONMENT, stdout=pipe, stderr=pipe, start_new_session=True, limit=2**20
        )
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [asyncio.create_task(self._read(stream)) for stream in streams if stream]
        return self

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            self.last_lines.append(line)
            self._on_line(self.name, line)

    async def finished(self) -> int:
        """Wait until it has exited and all of its output has been read."""
        await asyncio.gather(*self._readers)
        return await self._process.wait()

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with suppress(ProcessLookupError, TimeoutError):
                    os.killpg(self._process.pid, signum)
                    await asyncio.wait_for(self._process.wait(), STOP_GRACE_S)


@dataclass
class Observer:
    """Observes the workers' lines, and kills one of the workers after a few epochs."""

    kill_after_epoch: int
    verbose: bool
    warm: bool
    began_at: float = 0.0
    start_s: float | None = None
    pids: dict[int, int] = field(default_factory=dict)
    accuracy: float = 0.0
    killed_at: float | None = None
    restart_s: float | None = None

    def on_line(self, program: str, said: str) -> None:
        facts = dict(re.findall(r"(\w+)=(\S+)", said))
        if said.startswith("worker pid="):
            self._on_worker(program, said, facts)
        elif said.startswith("resumed "):
            show(f"{program}  {said}", "good")
        elif said.startswith("epoch="):
            self._on_epoch(program, said, facts)
        elif self.verbose or " node-agent: " in said:
            show(f"{program}  {said}", "dim")

    def _on_worker(self, program: str, said: str, facts: dict[str, str]) -> None:
        self.pids[int(facts["rank"])] = int(facts["pid"])
        show(f"{program}  {said}", program)
        if self.start_s is None:
            self.start_s = time.monotonic() - self.began_at
            show(f"the first workers took {self.start_s:.2f} s, most of it to import torch and scikit-learn", "good")
        elif self.killed_at is not None and self.restart_s is None:
            self.restart_s = time.monotonic() - self.killed_at
            show(f"restart {facts['restart_count']}: {self.recovery()}", "good")

    def recovery(self) -> str:
        """Return a sentence that compares the restart with the start."""
        if self.start_s is None or self.restart_s is None:
            return "there are no new workers"
        how = "warm, without the imports" if self.warm else "cold, with the imports once more"
        return f"new workers took {self.restart_s:.2f} s, {how}; the first ones {self.start_s:.2f} s"

    def _on_epoch(self, program: str, said: str, facts: dict[str, str]) -> None:
        self.accuracy = float(facts["accuracy"])
        show(f"{program}  {said}", program)
        if self.killed_at is None and int(facts["epoch"]) >= self.kill_after_epoch:
            rank, pid = max(self.pids.items())
            show(f"killing rank {rank} (pid {pid}) with SIGKILL", "bad")
            self.killed_at = time.monotonic()
            os.kill(pid, signal.SIGKILL)


async def play(args: argparse.Namespace, folder: str) -> bool:
    """Run the whole demo, from the server's start to the verdict."""
    observer = Observer(args.kill_after_epoch, args.verbose, warm=not args.cold)
    async with AsyncExitStack() as programs:
        address = await start_server(programs, observer)
        show(f"status page: {address}/v1/status")
        observer.began_at = time.monotonic()
        agents = [await programs.enter_async_context(agent(node, address, folder, observer)) for node in NODES]
        await asyncio.gather(*map(success, agents))
        return verdict(observer, await asyncio.to_thread(charged_restarts, address))


async def start_server(programs: AsyncExitStack, observer: Observer) -> str:
    """Start the server on a port that the kernel chooses. Return its address once it listens."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_line(program: str, line: str) -> None:
        observer.on_line(program, line)
        if (match := re.search(r"listening on (http://[^\s/]+)", line)) and not address.done():
            address.set_result(match[1])

    server = Program("rdzv-server", on_line, "-m", "rdzv_server", "--host", "127.0.0.1", "--port", "0")
    await programs.enter_async_context(server)
    ended = asyncio.create_task(server.finished())
    await asyncio.wait((address, ended), return_when=asyncio.FIRST_COMPLETED)
    if not address.done():
        raise DemoFailed("the server did not start:\n" + "\n".join(server.last_lines))
    return address.result()


async def success(program: Program) -> None:
    """Wait for it to exit 0. Any other end of it ends the demo at once."""
    if code := await program.finished():
        raise DemoFailed(f"{program.name} exited {code}; its last lines:\n" + "\n".join(program.last_lines))


def agent(node: str, address: str, folder: str, observer: Observer) -> Program:
    launch = ["-m", "node_agent", "--endpoint", address.removeprefix("http://"), "--run-id", RUN_ID]
    launch += ["--nnodes", str(len(NODES)), "--nproc", str(NPROC), "--max-restarts", "3", "--node-id", node]
    launch += ["--preload", PRELOAD] if observer.warm else []
    script = [os.path.join(ROOT, "examples", "train_digits.py"), "--checkpoint", os.path.join(folder, "digits.pt")]
    slowly = ["--target-accuracy", str(TARGET_ACCURACY), "--step-delay-ms", "5"]
    return Program(node, observer.on_line, *launch, *script, *slowly)


def charged_restarts(address: str) -> int:
    """Return the server's own count, the only one for the whole run."""
    with urlopen(f"{address}/v1/status", timeout=10) as reply:
        runs: list[dict[str, Any]] = json.load(reply)["runs"]
    return int({run["run_id"]: run["restart_count"] for run in runs}[RUN_ID])


def verdict(observer: Observer, restarts: int) -> bool:
    """Print the summary after both agents have exited 0. Return whether all else went as expected."""
    checks = (
        (f"accuracy on held-out digits: {observer.accuracy:.2%}", observer.accuracy >= TARGET_ACCURACY),
        (f"restarts charged by the server: {restarts}", restarts == 1),
        (f"from the kill on: {observer.recovery()}", observer.restart_s is not None),
    )
    for text, passed in checks:
        show(f"{'ok  ' if passed else 'FAIL'}  {text}", "good" if passed else "bad")
    return all(passed for _, passed in checks)


async def run(args: argparse.Namespace) -> bool:
    """Run the demo with a time limit. SIGTERM stops it as cleanly as Ctrl-C."""
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with tempfile.TemporaryDirectory(prefix="digits-demo-") as folder:
        async with asyncio.timeout(args.timeout_s):
            return await play(args, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on two nodes, kill a worker, see the run recover.")
    parser.add_argument(
        "--kill-after-epoch",
        type=int,
        default=4,
        metavar="N",
        help="kill a worker after epoch N (default: %(default)s)",
    )
    parser.add_argument(
        "--cold", action="store_true", help="start without --preload: the restart imports everything again"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=180.0, help="give up after this many seconds (default: %(default)g)"
    )
    parser.add_argument("--verbose", action="store_true", help="show every line of every program")
    args = parser.parse_args()
    try:
        return 0 if asyncio.run(run(args)) else 1
    except (DemoFailed, URLError) as error:
        show(str(error), "bad")
    except TimeoutError:
        show(f"not finished after {args.timeout_s:g} s", "bad")
    except (KeyboardInterrupt, asyncio.CancelledError):
        show("stopped", "bad")
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
