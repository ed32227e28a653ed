"""Workers that run a Python function, started with one of multiprocessing's three methods.

- `spawn`: a new interpreter, executed with the worker's environment, output and session, like a command.
- `fork`: a copy of this process, made by the thread that runs the agent.
- `forkserver`: a copy of multiprocessing's fork server. The process has one fork server, which outlives the workers.

With every method, the worker leads its own session and writes to the descriptors it is given. The kernel kills it when
the thread that started it ends. With `forkserver`, the kernel kills it when the fork server ends, which ends with this
process.

This module uses internals of multiprocessing where the public classes cannot set a child up as a worker before any
other code runs.
"""

import io
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import context, get_context, popen_fork, popen_forkserver, popen_spawn_posix, reduction, spawn
from multiprocessing import forkserver as server
from multiprocessing.resource_tracker import getfd
from multiprocessing.util import Finalize
from socket import socket
from typing import Any, BinaryIO, Literal, cast

from node_agent import words
from node_agent.compat.api.child import (
    LENGTH_BYTES,
    ChildSetup,
    Descriptor,
    Task,
    run,
    run_forked,
    set_up_from_forkserver,
)
from node_agent.compat.api.pickled_call import PickledCall
from node_agent.kernel.processes.process import ChildProcess, CommandProcess, Process
from node_agent.kernel.processes.system_calls import memfd_create

StartMethod = Literal["spawn", "fork", "forkserver"]
START_METHODS: tuple[StartMethod, ...] = ("spawn", "fork", "forkserver")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One worker to start."""

    call: PickledCall
    environment: Mapping[str, str]
    stdout: int
    stderr: int
    cpus: Collection[int]
    gate: socket
    """Socket on which the worker reports that its value is ready, and then waits until it may exit."""
    result: BinaryIO = field(default_factory=lambda: os.fdopen(memfd_create("result"), "rb"))
    """A file in memory for the return value."""


class FunctionProcess:
    """A child that runs a function."""

    def __init__(self, method: StartMethod, spec: ChildSpec, on_end: Callable[[int], None]) -> None:
        self._popen: _Spawned | _Forked | _Served
        self._result = spec.result
        self._on_end = on_end
        try:
            self._popen = _POPENS[method](spec)
        except BaseException:
            self.discard()
            raise
        self.pid = self._popen.pid

    def fileno(self) -> int:
        return self._popen.child.fileno()

    def wait_until_started(self) -> None:
        pass

    def reap(self) -> int:
        exit_code = self._popen.child.reap()
        self._popen.close()
        if exit_code != 0:
            self.discard()
        self._on_end(exit_code)
        return exit_code

    def value(self) -> Any:
        """Return the function's value, None if the function ended the process instead. Call it once, after exit code 0.

        Raises what unpickling raises, such as `AttributeError` for a class that exists only in the worker.
        """
        with self._result as file:
            file.seek(0)
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            return pickle.load(file) if length else None

    def discard(self) -> None:
        """Drop the function's value, which is not needed."""
        self._result.close()


class _Spawned(popen_spawn_posix.Popen):
    """Spawned process of multiprocessing, executed like a command: it is set up before any user code runs."""

    _fds: list[int]

    def _launch(self, spec: ChildSpec) -> None:
        tracker = getfd()
        assert tracker is not None
        pipe, parent_end = os.pipe()
        self.finalizer = Finalize(self, os.close, (parent_end,))
        try:
            with spec.call.open(self) as pickled:
                data = _for_a_new_interpreter(self, spec, pickled)
                self.child = CommandProcess(
                    spawn.get_command_line(tracker_fd=tracker, pipe_handle=pipe),
                    spec.environment,
                    spec.stdout,
                    spec.stderr,
                    spec.cpus,
                    pass_fds=(*self._fds, tracker, pipe),
                )
        finally:
            os.close(pipe)
        self.pid = self.child.pid
        # A broken pipe means that the child is gone, and its end will be noticed.
        with suppress(BrokenPipeError), open(parent_end, "wb", closefd=False) as file:
            file.write(data)


class _Forked(popen_fork.Popen):
    def _launch(self, spec: ChildSpec) -> None:
        with _readiness() as ready:
            setup = _setup(spec, ready, os.getpid(), int)
            task = Task(spec.result.fileno(), spec.gate.fileno(), call=spec.call.call)
            super()._launch(  # type: ignore[misc]
                get_context("fork").Process(target=run_forked, args=(setup, task))
            )
        self.child = ChildProcess(self.pid)  # not its sentinel, which a child of the child would keep open


class _Served(popen_forkserver.Popen):
    _fds: list[int]

    def _launch(self, spec: ChildSpec) -> None:
        try:
            with _readiness() as ready, spec.call.open(self) as pickled:
                data = _for_a_new_interpreter(self, spec, pickled, ready)
                self.sentinel, pipe = server.connect_to_new_process(self._fds)
                self.finalizer = Finalize(self, _close, (self.sentinel, os.dup(pipe)))
                with open(pipe, "wb") as file:
                    file.write(data)
                self.pid = server.read_signed(self.sentinel)
        except (EOFError, ConnectionError) as error:
            raise OSError(words.api.FORK_SERVER_ENDED) from error

    @property
    def child(self) -> Process:
        return self

    def fileno(self) -> int:
        return self.sentinel

    def wait_until_started(self) -> None:
        pass

    def reap(self) -> int:
        exit_code = self.wait()
        assert exit_code is not None
        return exit_code


_POPENS: Mapping[StartMethod, Any] = {"spawn": _Spawned, "fork": _Forked, "forkserver": _Served}


@contextmanager
def _readiness() -> Iterator[int]:
    """Yield a descriptor that a forked child writes to when it leads its group. Earlier signals to the group would be
    lost.

    The end of the `with` block waits for that, some milliseconds.
    """
    reader, ready = os.pipe()
    with open(reader, "rb", 0) as waiting:
        try:
            yield ready
        finally:
            os.close(ready)
        waiting.read(1)


class _SetUpFirst:
    """Name of a process. Unpickling it sets the child up, and happens first."""

    def __init__(self, setup: ChildSetup, name: str) -> None:
        self._setup, self._name = setup, name

    def __reduce__(self) -> tuple[Any, ...]:
        return set_up_from_forkserver, (self._setup, self._name)


def _for_a_new_interpreter(popen: Any, spec: ChildSpec, pickled: int, ready: int | None = None) -> bytes:
    """Return what `multiprocessing.spawn` reads in the child: how to prepare the interpreter, and the process object.

    `ready`: for a child that is forked, and must be set up.
    """
    by_value, file = spec.call.by_value, io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        result, gate = reduction.DupFd(spec.result.fileno()), reduction.DupFd(spec.gate.fileno())
        task = Task(result, gate, None, reduction.DupFd(pickled), by_value)
        process = cast(Any, get_context(popen.method)).Process(target=run, args=(task,))
        preparation = spawn.get_preparation_data(process.name)
        if ready is not None:
            preparation["name"] = _SetUpFirst(_setup(spec, ready, None, reduction.DupFd), process.name)
        if by_value:
            for key in ("init_main_from_name", "init_main_from_path"):
                preparation.pop(key, None)
        reduction.dump(preparation, file)
        reduction.dump(process, file)
    finally:
        context.set_spawning_popen(None)
    return file.getvalue()


def _setup(spec: ChildSpec, ready: int, parent: int | None, sent: Callable[[int], Descriptor]) -> ChildSetup:
    return ChildSetup(
        sent(spec.stdout), sent(spec.stderr), sent(ready), dict(spec.environment), tuple(spec.cpus), parent
    )


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
