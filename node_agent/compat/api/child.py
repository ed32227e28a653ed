"""A worker that runs a function: set up, call, return the value. It runs in the worker and imports little."""

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
from node_agent.kernel.processes.process import tie_to_parent

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""
Descriptor = Any
"""File descriptor to pass to a worker: its number, or an object of `multiprocessing.reduction.DupFd`."""

LENGTH_BYTES = 8
"""Bytes of the number before a returned value. The number is the length of the value's pickle, 0 until that is
complete."""


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """Setup of a process that was forked and not executed."""

    stdout: Descriptor
    stderr: Descriptor
    ready: Descriptor
    """Descriptor to write to once the process leads its own group, so that a signal to the group reaches it."""
    environment: Mapping[str, str]
    cpus: Collection[int]
    """CPUs that the process may run on, empty for its parent's."""
    parent: int | None
    """Process to die with, None for the process that forked it."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work of a worker. The call is in memory, or a pickle in a file."""

    result: Descriptor
    """A file in memory for the return value."""
    gate: Descriptor
    """Socket on which a worker reports that its value is ready, and then waits until those of all workers are."""
    call: Call | None = None
    pickled: Descriptor | None = None
    by_value: bool = False
    """Whether the worker cannot import the function: it comes from a notebook or standard input, or is a lambda."""


def set_up(setup: ChildSetup) -> None:
    """Set up a worker: session, tie to its parent, output, environment. No user code has run before."""
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
    """Run `set_up` when `multiprocessing`'s fork server first unpickles data in the child. Return `name`.

    The server ends when all other ends of its pipe are closed. A worker does not need the pipe, and would keep the
    server, and so itself, alive after the agent's end.
    """
    from multiprocessing import forkserver

    server = forkserver._forkserver
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        server._forkserver_alive_fd = None  # type: ignore[attr-defined]
    set_up(setup)
    return name


def run_forked(setup: ChildSetup, task: Task) -> None:
    """Start as a worker that was forked from the agent's own process."""
    signals.undo_in_child()
    set_up(setup)
    run(task)


def run(task: Task) -> None:
    """Call the function and pass its value back. The process exits with 1 if the function raises.

    A worker that has returned stays until all workers of its node have, as under torch. Others may still communicate
    with threads of a process group that it has not destroyed.
    """
    sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
    faulthandler.enable(sys.stderr)
    try:
        _hand_back(_call(*(task.call or _unpack(task))), _number(task.result))
    except SystemExit:
        raise  # multiprocessing then exits with the usual exit code of a Python program
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
    """Wait until the agent releases all workers, or stops them."""
    with socket.socket(fileno=fd) as gate, suppress(ConnectionError):
        gate.sendall(b".")
        gate.recv(1)


def layers(function: Callable[..., Any] | None) -> Iterator[Callable[..., Any]]:
    """Yield the function, and the functions inside a partial, a bound method or a decorated function."""
    while function is not None:
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        else:
            function = getattr(function, "__func__", None) or getattr(function, "__wrapped__", None)


def _number(descriptor: Descriptor) -> int:
    """Return the descriptor in this process."""
    return descriptor if isinstance(descriptor, int) else int(descriptor.detach())


def _unbuffered(fd: int) -> TextIO:
    """Return a stream as under `python -u`, so that no output is lost if the worker dies. A notebook has its own."""
    raw = open(fd, "wb", 0, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", write_through=True)


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except SystemExit as end:
        if end.code:
            raise
        return None  # it reports success


def _unpack(task: Task) -> Call:
    with open(_number(task.pickled), "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        call: Call = pickle.loads(data)
    if task.by_value:
        _publish(call[0])
    return call


def _publish(outermost: Callable[..., Any]) -> None:
    """Put the function's definitions into `__main__`, where pickles such as checkpoints may look them up."""
    main = vars(sys.modules["__main__"])
    for function in layers(outermost):
        names = getattr(function, "__globals__", {})
        if names.get("__name__") == "__main__":
            main.update({name: value for name, value in names.items() if not name.startswith("__")})


def _hand_back(value: Any, fd: int) -> None:
    """Write the value, by name if possible, so that the agent gets objects of its own classes."""
    with open(fd, "r+b") as file:
        if problem := _dump(pickle, value, file) and _dump(import_module("cloudpickle"), value, file):
            raise TypeError(words.api.value_not_picklable(type(value).__name__, problem))
        length = file.tell() - LENGTH_BYTES
        file.seek(0)
        file.write(length.to_bytes(LENGTH_BYTES, "little"))


def _dump(pickler: Any, value: Any, file: BinaryIO) -> str:
    """Write the value. Return why that failed, empty if it succeeded."""
    file.seek(LENGTH_BYTES)
    file.truncate()
    try:
        pickler.dump(value, file, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return f"{error or type(error).__name__}"
    return ""


def _record(error: BaseException, text: str) -> None:
    """Write the error where torch's `@record` does. A nested launcher's error is that of its first failed worker."""
    from node_agent.kernel.environment import ERROR_FILE
    from node_agent.kernel.failures import error_file

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
    """Return the error with a traceback that begins at the user's function."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace) if trace else error
