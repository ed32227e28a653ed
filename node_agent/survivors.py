"""The last completed step of a training script, saved by a worker that survives when its round ends.

When a worker dies, the other workers of data-parallel training still have the state after the last completed step.
`saved_by_survivors` writes it before the restart, and `newest_saved` finds it afterwards. Neither needs an agent, torch
or a collective operation.

A worker learns in two ways that its round has ended. Its collective operation fails because a peer is gone, or its
agent sends SIGTERM. The main thread may then be blocked in a collective operation, where no Python handler runs. So a
thread waits for the signal's byte in a pipe, which Python's own handler in C writes at once, and this thread saves.

The survivors agree through files only. For each step one worker holds the lock and writes. The others wait for it, and
one takes over if it dies or fails. A state gets its final name when it is complete. See ADR 69.
"""

import errno
import fcntl
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Self

from node_agent import words
from node_agent.in_worker import continues_after
from node_agent.kernel.failures import hints

UPDATE_S = 5.0
"""Most seconds that a save waits for the end of an update that has begun."""
LOOKS_S = (0.02, 1.0)
"""Seconds between two tries to get the lock: at first, and at most."""
_SAVE, _CLOSE = b"\xfe", b"\xff"
"""Orders to the thread, in addition to the numbers of signals."""
_NAME = re.compile(r"step-(\d{12,})\.(\d+)-of-(\d+)")
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)

Save = Callable[[str, int], object]
"""The script's function: write the state after `step` steps to `path`, a new file or folder."""


class Saved(NamedTuple):
    """State after a step that survivors have saved."""

    step: int
    """Number of steps done."""
    paths: tuple[str, ...]
    """Files that the script's function has written: one path for each part, in order."""

    @property
    def path(self) -> str:
        """The path of the first part, which is the only one unless the state has several."""
        return self.paths[0]


def newest_saved(folder: str | os.PathLike[str]) -> Saved | None:
    """Return the newest complete state in the folder, None if there is none.

    Ranks that look at different disks, or at different times, may find different states. So let them agree on one.
    """
    found: dict[tuple[int, int], dict[int, str]] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if match := _NAME.fullmatch(name):
                step, part, parts = map(int, match.groups())
                found.setdefault((step, parts), {})[part] = os.path.join(folder, name)
    complete = [key for key, paths in found.items() if paths.keys() == set(range(key[1]))]
    if not complete:
        return None
    newest = max(complete)
    return Saved(newest[0], tuple(path for _, path in sorted(found[newest].items())))


def saved_by_survivors(
    folder: str | os.PathLike[str], save: Save, *, part: tuple[int, int] = (0, 1), limit_s: float = 30.0
) -> "SavedBySurvivors":
    """Return a context manager around the training loop: if the round ends, a surviving worker saves the last step.

    The worker saves if its agent stops it, or if a collective operation fails because another worker is gone. A worker
    that fails for another reason saves nothing. When the save is complete, a stopped worker ends by
    SIGTERM, unless the script handles SIGTERM itself.

    `folder`: where the states are kept, on a shared disk or on each node's own. Every new state replaces older ones.

    `save`: called as `save(path, step)` by a thread of the library. It writes the state to `path`, which may become a
    file or a folder. It must not use collective operations, because other workers are gone.

    `part`: which part of the state this worker has, and the number of parts. Set it if the state is sharded, and
    several workers have the same part. The state is complete when each part has been saved by one of them.

    `limit_s`: most seconds from the end of the round until this worker ends. The agent's `--shutdown-timeout` is a
    limit as well.
    """
    return SavedBySurvivors(folder, save, part, limit_s)


class SavedBySurvivors:
    """Guard of a worker's state: it knows after which step the state is complete, and saves it when the round ends."""

    def __init__(self, folder: str | os.PathLike[str], save: Save, part: tuple[int, int], limit_s: float) -> None:
        self._folder, self._save = os.fspath(folder), save
        self._part, self._limit_s = part, limit_s
        self._state = threading.Lock()
        """Held while the state changes, and while it is saved."""
        self._turn = threading.Lock()
        """Held from the end of the round until the state is saved, so that no further update begins."""
        self._step: int | None = None
        """Number of the last completed step, None if there is none yet or the state is incomplete."""
        self._is_first = True
        """Whether no update has begun yet."""
        self._updated: Any = None
        """CUDA event after the last update, None without CUDA."""
        self._pipe = (-1, -1)
        self._previous: Any = signal.SIG_DFL
        self._previous_wakeup = -1
        self._thread = threading.Thread(target=self._wait_for_the_end, name="node_agent survivor", daemon=True)

    @contextmanager
    def update(self, step: int) -> Iterator[None]:
        """Mark the block that turns the state into the one after `step` steps.

        The state is complete after step N from the end of this block until the next one begins. So everything that
        `save` writes must change only in such blocks: parameters, optimizer, scheduler, the number of samples taken. A
        block in which an error occurs does not leave a complete state.
        """
        if self._is_first:
            self._is_first = False
            continues_after(step - 1)
        torch = _torch_with_cuda()
        if torch:  # the collective operations of this step must have succeeded before the state changes
            torch.cuda.current_stream().synchronize()
        with self._turn:
            pass
        with self._state:
            self._step = None
            yield
            if torch:
                self._updated = torch.cuda.Event()
                self._updated.record()
            self._step = step

    def __enter__(self) -> Self:
        global _current
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(words.survivors.MAIN_THREAD_ONLY)
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._previous = signal.signal(signal.SIGTERM, self._handle)
        self._previous_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread.start()
        _current = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:  # fmt: skip
        global _current
        if error and is_of_a_peer(error):
            os.write(self._pipe[1], _SAVE)
        os.write(self._pipe[1], _CLOSE)
        self._thread.join(self._limit_s)  # it may be saving
        _current = None
        self._restore_signals()
        if not self._thread.is_alive():
            for end in self._pipe:
                os.close(end)

    def _restore_signals(self) -> None:
        signal.set_wakeup_fd(self._previous_wakeup)
        signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """Call the script's own handler. The byte in the pipe has already woken the thread."""
        if callable(self._previous):
            self._previous(signum, frame)

    # In the thread.

    def _wait_for_the_end(self) -> None:
        while (order := os.read(self._pipe[0], 1)) != _CLOSE:
            if self._previous_wakeup >= 0 and order != _SAVE:
                with suppress(OSError):
                    os.write(self._previous_wakeup, order)
            if order not in (_SAVE, bytes([signal.SIGTERM])):
                continue
            is_to_end = order != _SAVE and self._previous is signal.SIG_DFL
            if is_to_end:
                limit = threading.Timer(self._limit_s, self._end, (words.survivors.too_slow(self._limit_s),))
                limit.daemon = True
                limit.start()
            self._save_state()
            if is_to_end:
                self._end()

    def _end(self, message: str = "") -> None:
        """End this process by SIGTERM, as if it were not handled. Only the main thread could use `signal.signal`."""
        import ctypes

        if message:
            _tell(message)
        ctypes.CDLL(None).signal(signal.SIGTERM.value, ctypes.c_void_p(0))
        os.kill(os.getpid(), signal.SIGTERM)

    def _save_state(self) -> None:
        """Save the state, unless it is incomplete or another survivor has saved it."""
        with self._turn:
            if not self._state.acquire(timeout=UPDATE_S):
                _tell(words.survivors.in_an_update(UPDATE_S))
                return
            try:
                if self._step is not None:
                    self._save_step(self._step)
            finally:
                self._state.release()

    def _save_step(self, step: int) -> None:
        began, why = time.monotonic(), ""
        part, parts = self._part
        name = f"step-{step:012}.{part}-of-{parts}"
        path = os.path.join(self._folder, name)
        new = os.path.join(self._folder, f".{name}.{socket.gethostname()}.{os.getpid()}.part")
        try:
            os.makedirs(self._folder, exist_ok=True)
            if _is_saved(path, step):
                return
            with _locked(os.path.join(self._folder, f".{name}.lock"), began + self._limit_s) as has_lock:
                if not has_lock or _is_saved(path, step):
                    return
                with _reading_after(self._updated):
                    self._save(new, step)
                _sync(new)
                os.rename(new, path)
                _tell(words.survivors.saved(step, path, time.monotonic() - began))
                _remove_older(self._folder)
        except Exception as error:  # a save that fails must not keep the worker from ending
            why = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            _remove(new)
        if why:
            _tell(words.survivors.not_saved(step, why))


_current: SavedBySurvivors | None = None


def _before_fork() -> None:
    """Block SIGTERM until a forked child, such as a process of a DataLoader, has restored its own handler."""
    if _current:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _after_fork() -> None:
    if _current:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _after_fork_in_child() -> None:
    global _current
    if _current:
        _current._restore_signals()
        _after_fork()
        _current = None


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def is_of_a_peer(error: BaseException) -> bool:
    """Return whether a collective operation failed because another worker is gone or late."""
    texts, seen = [], set[int]()
    each: BaseException | None = error
    while each and id(each) not in seen:
        seen.add(id(each))
        texts.append(f"{type(each).__name__}: {each}")
        each = each.__cause__ or each.__context__
    advice = hints.find(texts)
    return bool(advice and advice.is_consequence)


def _torch_with_cuda() -> Any:
    """Return torch if this process uses CUDA, None otherwise."""
    torch = sys.modules.get("torch")
    return torch if torch and torch.cuda.is_initialized() else None


@contextmanager
def _reading_after(event: Any) -> Iterator[None]:
    """Read GPU memory in a stream of its own. The default stream may be blocked behind a collective operation."""
    torch = _torch_with_cuda()
    if not torch or not event:
        yield
        return
    with torch.cuda.device(event.device):
        stream = torch.cuda.Stream()
        stream.wait_event(event)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()


def _is_saved(path: str, step: int) -> bool:
    """Return whether a survivor has saved this part of the state, or all of it after this step or a later one."""
    newest = newest_saved(os.path.dirname(path))
    return os.path.lexists(path) or (newest is not None and newest.step >= step)


@contextmanager
def _locked(path: str, until: float) -> Iterator[bool]:
    """Wait for the lock, and yield whether this process got it in time. The lock is released when its holder ends.

    On a file system without locks every process counts as the holder. Several may then write the same state.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        wait_s, longest_s = LOOKS_S
        while not (has_lock := _try_lock(file)) and time.monotonic() < until:
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)
        yield has_lock
    finally:
        os.close(file)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def _remove_older(folder: str) -> None:
    """Remove files of steps before the newest complete state, unless a process is writing them."""
    newest = newest_saved(folder)
    names = sorted(os.listdir(folder))
    for lock in (name for name in names if name.endswith(".lock")):
        base = lock[1 : -len(".lock")]
        match = _NAME.fullmatch(base)
        if newest and match and int(match[1]) < newest.step:
            with _locked(os.path.join(folder, lock), 0.0) as is_free:
                for name in names if is_free else ():
                    if name == base or name.startswith(f".{base}."):
                        _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    with suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _sync(path: str) -> None:
    """Write a file or folder to its disk: a crash of the node must not leave a broken one under the final name."""
    found = [path] if os.path.isfile(path) else [
        os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names
    ]  # fmt: skip
    for each in found:
        file = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _tell(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
