"""A thread with its own event loop and console, for work that must continue while the caller's thread does anything.

The kernel ties a worker to the thread that started it, so this thread must live as long as the worker.
"""

import asyncio
import codecs
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Generic, TextIO, TypeVar

from rdzv_protocol.log_lines import LineFormat

from node_agent import words
from node_agent.compat.api.signals import WakeupPipe
from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.console import ERR, OUT, Console
from node_agent.kernel.threads import ThreadLoop

T = TypeVar("T")

log = logging.getLogger("node_agent")


class Awaited(Future[T]):
    """A future that the main thread can wait for while it still handles signals at once.

    It uses only a lock and a pipe, so that an exception in a signal handler leaves nothing half done.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # from now on it cannot be cancelled
        self._is_over = False
        self._closed = threading.Lock()
        self._closed.acquire()
        self._pipes: list[WakeupPipe] = []
        """Pipes of the main thread's current waits. If there are several, each further one is in a signal's handler."""
        self.add_done_callback(lambda _: self._tell())

    def wait(self, limit_s: float = inf) -> bool:
        """Wait until the future is done, with any result, or the time is up. Return whether it is done."""
        if threading.current_thread() is threading.main_thread():
            self._wait_for_signals(monotonic() + limit_s)
        elif self._closed.acquire(timeout=min(max(limit_s, 0.0), threading.TIMEOUT_MAX)):
            self._closed.release()
        return self._is_over

    def _wait_for_signals(self, until: float) -> None:
        pipe = WakeupPipe()
        self._pipes.append(pipe)
        try:
            pipe.install()
            while not self._is_over and (left_s := until - monotonic()) > 0:
                pipe.wait(left_s)
        finally:
            if pipe.before:
                signal.set_wakeup_fd(pipe.before[0])
            self._pipes.remove(pipe)
            pipe.removed()

    def _tell(self) -> None:
        self._is_over = True
        self._closed.release()
        for pipe in list(self._pipes):
            pipe.wake()


class LoopThread(Generic[T]):
    """Runs one coroutine to its end. `result` is set when only the end of the thread remains."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Raises `RuntimeError` if this process cannot learn the exit codes of its children."""
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            raise RuntimeError(words.api.CHILDREN_IGNORED)
        self.result: Awaited[T] = Awaited()
        self._main = main
        self._loop = ThreadLoop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, unless it has been started. Raises `RuntimeError` if there are no threads left."""
        if self._thread.ident is None:
            self._thread.start()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function soon in the loop, or not at all if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def run(self, ask: Callable[[BaseException], None]) -> None:
        """Start the thread and wait for its end. `ask` requests the end, on an interruption and each further Ctrl-C."""
        try:
            self.start()
            self.result.wait()
        except BaseException as error:  # Ctrl-C, or an exception from one of the program's signal handlers
            while self._thread.is_alive():
                ask(error)
                with suppress(KeyboardInterrupt):
                    self.result.wait()
                    self.join()
            raise
        self.join()

    async def run_async(self, ask: Callable[[BaseException], None]) -> None:
        """Do the same as `run`, for asyncio: the thread is asked to end whenever the waiting task is cancelled."""
        try:
            self.start()
            await done(self.result)
        except asyncio.CancelledError as error:
            while self._thread.is_alive():
                ask(error)
                with suppress(asyncio.CancelledError):
                    await done(self.result)
                    self.join()
            raise
        self.join()

    def join(self) -> None:
        """Wait for the end of the thread itself, after `result`."""
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                result = runner.run(self._main())
        except BaseException as error:
            self.result.set_exception(error)
        else:
            self.result.set_result(result)


async def done(future: Future[Any]) -> None:
    """Return when the future is done, with any result. Cancelling this wait does not cancel the future."""
    with suppress(Exception):
        await asyncio.shield(asyncio.wrap_future(future))


class ApiConsole(Console):
    """Console of a program: the workers' output goes where `print` writes, which in a notebook is not a descriptor.

    The agent's own lines become log records, because a library must not write on its user's stderr. Routine lines are
    INFO, and all others are WARNING, which Python shows by default.
    """

    can_redraw = False

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        pairs = ((OUT, sys.stdout), (ERR, sys.stderr))
        self._streams = {fd: _Text(stream) for fd, stream in pairs if _is_elsewhere(stream, fd)}
        super().__init__(LineFormat(name), loop)

    def log(self, text: str, level: Level = Level.WARNING, event: str = "") -> None:
        log.log(logging.INFO if level is Level.ROUTINE else logging.WARNING, "%s", text)

    def put(self, fd: int, view: memoryview) -> int:
        return self._streams[fd].put(view) if fd in self._streams else super().put(fd, view)


class _Text:
    """A stream that takes text."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, view: memoryview) -> int:
        try:
            self._stream.write(self._decoder.decode(view))
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the reader is gone: the run continues
        return len(view)


def _is_elsewhere(stream: TextIO | None, fd: int) -> bool:
    """Return whether printed output goes to a notebook, a file or a test, not to this descriptor."""
    if stream is None:
        return False
    try:
        return not os.path.sameopenfile(stream.fileno(), fd)
    except (AttributeError, OSError, ValueError):
        return True
