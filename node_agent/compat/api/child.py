"""Life of a worker that runs a function: set up, call, hand back. It runs in the worker, and imports little."""

import faulthandler
import functools
import io
import mmap
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, BinaryIO, TextIO

from node_agent import words
from node_agent.compat.api import signals
from node_agent.kernel.workers.process import tie_to_parent

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""
Descriptor = Any
"""File descriptor on its way to a worker: its number, or what `multiprocessing.reduction.DupFd` makes of it."""

LENGTH_BYTES = 8
"""Length of the number that a returned value begins with: how long its pickle is; 0 until all of it is there."""


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """Place that a process takes which was forked, not executed."""

    stdout: Descriptor
    stderr: Descriptor
    ready: Descriptor
    """Descriptor that is written to once the process leads its own group, so that a signal to the group finds it."""
    environment: Mapping[str, str]
    cpus: Collection[int]
    """CPUs that it may run on; empty: its parent's."""
    parent: int | None
    """Process to die with; None: whoever forked it."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work of a worker. The call is here in memory, or a pickle in a file."""

    result: Descriptor
    """A file in memory for the return value."""
    gate: Descriptor
    """Socket on which a worker says that its value is there, and then waits until those of all workers are."""
    call: Call | None = None
    pickled: Descriptor | None = None
    by_value: bool = False
    """Whether the worker cannot import the function: it is of a notebook, of standard input, or a lambda."""


def set_up(setup: ChildSetup) -> None:
    """Take the place of a worker: session, tie, output, environment. Nothing of the user's has run before."""
    os.setsid()
    tie_to_parent(setup.parent or os.getppid())
    signal.set_wakeup_fd(-1)
    stdout, stderr = _number(setup.stdout), _number(setup.stderr)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for fd in {stdout, stderr} - {0, 1, 2}:
        os.close(fd)
    os.environ.clear()
    os.environ.update(setup.environment)
    if setup.cpus:
        os.sched_setaffinity(0, setup.cpus)
    with open(_number(setup.ready), "wb") as ready:
        ready.write(b".")


def set_up_from_forkserver(setup: ChildSetup, name: str) -> str:
    """`set_up`, as the first thing that `multiprocessing`'s fork server unpickles in the child; returns `name`.

    The server ends when nobody holds the other end of its pipe. A worker does not need it, and would keep the server,
    and thereby itself, alive beyond the agent.
    """
    from multiprocessing import forkserver

    server = forkserver._forkserver
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        server._forkserver_alive_fd = None  # type: ignore[attr-defined]
    set_up(setup)
    return name


def run_forked(setup: ChildSetup, task: Task) -> None:
    """Begin as a worker that was forked from the agent's own process."""
    signals.undo_in_child()
    set_up(setup)
    run(task)


def run(task: Task) -> None:
    """Call the function and hand back what it returns; the process exits with 1 if it raises.

    A worker that has returned stays until all workers of its node have, as under torch: others may still talk to
    threads of a process group that it has not destroyed.
    """
    sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    faulthandler.enable(sys.stderr)
    try:
        _hand_back(_call(*(task.call or _unpack(task))), _number(task.result))
    except SystemExit:
        raise  # multiprocessing makes the exit code of it that any Python program has
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        text = "".join(traceback.format_exception(_without_our_frames(error)))
        _record(error, text)
        sys.stderr.write(text)
        sys.exit(1)
    _wait_for_the_others(_number(task.gate))


def _wait_for_the_others(fd: int) -> None:
    """Wait until the agent lets all workers go, or stops them."""
    with socket.socket(fileno=fd) as gate, suppress(ConnectionError):
        gate.sendall(b".")
        gate.recv(1)


def layers(function: Callable[..., Any] | None) -> Iterator[Callable[..., Any]]:
    """The function, and what a partial, a bound method or a decorated function holds within."""
    while function is not None:
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        else:
            function = getattr(function, "__func__", None) or getattr(function, "__wrapped__", None)


def _number(descriptor: Descriptor) -> int:
    """The descriptor in this process."""
    return descriptor if isinstance(descriptor, int) else int(descriptor.detach())


def _unbuffered(fd: int) -> TextIO:
    """Stream as under `python -u`: what is written is out when the worker dies. A notebook has one of its own."""
    raw = open(fd, "wb", 0, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", write_through=True)


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except SystemExit as end:
        if end.code:
            raise
        return None  # it says that all is well


def _unpack(task: Task) -> Call:
    with open(_number(task.pickled), "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        call: Call = pickle.loads(data)
    if task.by_value:
        _publish(call[0])
    return call


def _publish(outermost: Callable[..., Any]) -> None:
    """Put what came with the function into `__main__`: pickles that name it there, such as checkpoints, find it."""
    main = vars(sys.modules["__main__"])
    for function in layers(outermost):
        names = getattr(function, "__globals__", {})
        if names.get("__name__") == "__main__":
            main.update({name: value for name, value in names.items() if not name.startswith("__")})


def _hand_back(value: Any, fd: int) -> None:
    """Write the value, by name where that is possible, so that the agent gets its own classes back."""
    with open(fd, "r+b") as file:
        if problem := _dump(pickle, value, file) and _dump(import_module("cloudpickle"), value, file):
            raise TypeError(words.api.value_not_picklable(type(value).__name__, problem))
        length = file.tell() - LENGTH_BYTES
        file.seek(0)
        file.write(length.to_bytes(LENGTH_BYTES, "little"))


def _dump(pickler: Any, value: Any, file: BinaryIO) -> str:
    """Write the value. Returns why that cannot be done; empty if it has been done."""
    file.seek(LENGTH_BYTES)
    file.truncate()
    try:
        pickler.dump(value, file, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return f"{error or type(error).__name__}"
    return ""


def _record(error: BaseException, text: str) -> None:
    """Leave the error where torch's `@record` does. A nested launcher's error is that of its first failed worker."""
    from node_agent.kernel.failures import error_file
    from node_agent.kernel.workers.environment import ERROR_FILE

    if not (path := os.environ.get(ERROR_FILE)):
        return
    content = error_file.content(f"{type(error).__name__}: {error}", text)
    if hasattr(error, "get_first_failure"):
        _, failure = error.get_first_failure()
        content = error_file.copy(failure.error_file, failure.exitcode) or content
    try:
        error_file.write(path, content)
    except OSError as problem:
        print(words.api.cannot_write(path, problem.strerror), file=sys.stderr)  # noqa: T201


def _without_our_frames(error: BaseException) -> BaseException:
    """The error with a traceback that begins at the user's function."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace) if trace else error
