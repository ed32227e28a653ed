"""Workers that run a Python function, started by multiprocessing's three methods.

- `spawn`: a new interpreter, executed with the worker's environment, output and session, as a command is.
- `fork`: a copy of this process, made by the thread that runs the agent.
- `forkserver`: a copy of multiprocessing's fork server, which is one for the whole process and stays when workers go.

However it is started, the worker leads its own session, writes to the descriptors it is given, and is killed by the
kernel when the thread that started it ends (`forkserver`: when the fork server does, which ends with this process).
"""

import io
import os
import pickle
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing import context, get_context, popen_fork, popen_forkserver, popen_spawn_posix, reduction, spawn
from multiprocessing import forkserver as server
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import getfd
from multiprocessing.util import Finalize
from typing import Any, Literal, cast

from node_agent.api.child import (
    LENGTH_BYTES,
    Arrival,
    Call,
    Descriptor,
    Errand,
    Here,
    arrive_from_forkserver,
    run,
    run_forked,
)
from node_agent.api.parcel import Parcel
from node_agent.processes import CommandProcess

StartMethod = Literal["spawn", "fork", "forkserver"]
START_METHODS: tuple[StartMethod, ...] = ("spawn", "fork", "forkserver")

UNGUARDED = (
    "a worker imports the script that started it, which would start workers again: "
    'put what starts them under `if __name__ == "__main__":`, or use start_method="fork"'
)


class Function:
    """A function and its arguments, for any number of workers. Raises `TypeError` if they cannot be sent to one."""

    def __init__(self, method: StartMethod, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.method = method
        self.call: Call = (function, args)
        self.parcel = None if method == "fork" else Parcel(self.call)

    def close(self) -> None:
        """No further worker will be started."""
        if self.parcel:
            self.parcel.close()


@dataclass(frozen=True, slots=True)
class _Order:
    """One worker to start."""

    function: Function
    result: int
    environment: Mapping[str, str]
    stdout: int
    stderr: int
    cpus: Collection[int]
    opened: list[int] = field(default_factory=list)
    """What was opened for the start alone."""


class FunctionProcess:
    """A child that runs a function."""

    def __init__(
        self,
        function: Function,
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        cpus: Collection[int] = (),
    ) -> None:
        self._result = os.memfd_create("result", os.MFD_CLOEXEC)
        order = _Order(function, self._result, environment, stdout, stderr, cpus)
        try:
            self._child = _CHILDREN[function.method](order)
        except BaseException:
            os.close(self._result)
            raise
        finally:
            _close(*order.opened)
        self.pid = self._child.pid

    def fileno(self) -> int:
        return self._child.watched()

    def reap(self) -> int:
        exit_code = self._child.reap()
        if exit_code != 0:
            self.discard()
        return exit_code

    def value(self) -> Any:
        """What the function returned; None if it ended the process instead. Once, after an exit code of 0.

        Raises what unpickling raises, such as `AttributeError` for a class that there is in the worker alone.
        """
        result, self._result = self._result, -1
        with open(result, "rb") as file:
            file.seek(0)
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            return pickle.load(file) if length else None

    def discard(self) -> None:
        """Its value will not be asked for."""
        if self._result >= 0:
            os.close(self._result)
            self._result = -1


class _Spawned(popen_spawn_posix.Popen):
    """multiprocessing's, but executed as a command is: nothing of the user's runs before the worker is in its place."""

    def __init__(self, order: _Order) -> None:
        self._order = order
        super().__init__(_process("spawn", order))

    def _launch(self, process: BaseProcess) -> None:
        order = self._order
        tracker = getfd()
        assert tracker is not None
        data = _for_a_new_interpreter(self, process, order, process.name)
        sentinel, ends_with_child = os.pipe()
        pipe, parent_end = os.pipe()
        self.finalizer = Finalize(self, _close, (sentinel, parent_end))
        try:
            self._command = CommandProcess(
                spawn.get_command_line(tracker_fd=tracker, pipe_handle=pipe),
                order.environment,
                order.stdout,
                order.stderr,
                order.cpus,
                pass_fds=(*self._fds, tracker, pipe, ends_with_child),  # type: ignore[attr-defined]
            )
        finally:
            os.close(pipe)
            os.close(ends_with_child)
        self.pid = self._command.pid
        try:
            with open(parent_end, "wb", closefd=False) as file:
                file.write(data)
        except BrokenPipeError:
            pass  # it is gone, and its end will be noticed

    def watched(self) -> int:
        return self._command.fileno()

    def reap(self) -> int:
        self.returncode = self._command.reap()
        self.close()
        return self.returncode


class _Forked(popen_fork.Popen):
    def __init__(self, order: _Order) -> None:
        ready, arrived = os.pipe()
        try:
            arrival = _arrival(order, Here, arrived, os.getpid())
            errand = Errand(Here(order.result), call=order.function.call)
            super().__init__(get_context("fork").Process(target=run_forked, args=(arrival, errand)))
        except BaseException:
            _close(ready, arrived)
            raise
        _wait_for_arrival(ready, arrived)
        self._pidfd = os.pidfd_open(self.pid)

    def watched(self) -> int:
        """Not multiprocessing's sentinel, which a child of the child would keep open."""
        return self._pidfd

    def reap(self) -> int:
        os.close(self._pidfd)
        exit_code = self.wait()
        self.close()
        assert exit_code is not None
        return exit_code


class _Served(popen_forkserver.Popen):
    def __init__(self, order: _Order) -> None:
        self._order = order
        super().__init__(_process("forkserver", order))

    def _launch(self, process: BaseProcess) -> None:
        ready, arrived = os.pipe()
        try:
            name = _Named(process.name, self._order, arrived)
            data = _for_a_new_interpreter(self, process, self._order, name)
            self.sentinel, pipe = server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
            parent_end = os.dup(pipe)
            self.finalizer = Finalize(self, _close, (self.sentinel, parent_end))
            with open(pipe, "wb") as file:
                file.write(data)
            self.pid = server.read_signed(self.sentinel)
        except BaseException as error:
            _close(ready, arrived)
            if isinstance(error, EOFError | ConnectionError):
                raise OSError(f"multiprocessing's fork server has ended: {UNGUARDED}") from error
            raise
        _wait_for_arrival(ready, arrived)

    def watched(self) -> int:
        return self.sentinel

    def reap(self) -> int:
        exit_code = self.wait()
        self.close()
        assert exit_code is not None
        return exit_code


_CHILDREN: Mapping[StartMethod, type[_Spawned] | type[_Forked] | type[_Served]] = {
    "spawn": _Spawned,
    "fork": _Forked,
    "forkserver": _Served,
}


def _process(method: StartMethod, order: _Order) -> BaseProcess:
    process: BaseProcess = cast(Any, get_context(method)).Process(target=run, args=(_Errand(order),))
    return process


class _Errand:
    """Becomes an `Errand` in the worker, when `multiprocessing` sends it there."""

    def __init__(self, order: _Order) -> None:
        self._order = order

    def __reduce__(self) -> tuple[Any, ...]:
        order, parcel = self._order, self._order.function.parcel
        assert parcel
        order.opened.append(parcel.open(context.get_spawning_popen()))
        return Errand, (reduction.DupFd(order.result), None, reduction.DupFd(order.opened[-1]), parcel.by_value)


class _Named:
    """The name of a process whose reading, which comes before all else, lets it arrive."""

    def __init__(self, name: str, order: _Order, arrived: int) -> None:
        self._name, self._order, self._arrived = name, order, arrived

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive_from_forkserver, (_arrival(self._order, reduction.DupFd, self._arrived, None), self._name)


def _arrival(order: _Order, descriptor: Callable[[int], Descriptor], arrived: int, parent: int | None) -> Arrival:
    return Arrival(
        stdout=descriptor(order.stdout),
        stderr=descriptor(order.stderr),
        arrived=descriptor(arrived),
        environment=dict(order.environment),
        cpus=tuple(order.cpus),
        parent=parent,
    )


def _for_a_new_interpreter(popen: Any, process: BaseProcess, order: _Order, name: Any) -> bytes:
    """What `multiprocessing.spawn` reads in the child: how to prepare the interpreter, and the process to be."""
    preparation = {**spawn.get_preparation_data(process.name), "name": name}
    if order.function.parcel and order.function.parcel.by_value:
        for key in ("init_main_from_name", "init_main_from_path"):
            preparation.pop(key, None)
    file = io.BytesIO()
    context.set_spawning_popen(popen)
    try:
        reduction.dump(preparation, file)
        reduction.dump(process, file)
    finally:
        context.set_spawning_popen(None)
    return file.getvalue()


def _wait_for_arrival(ready: int, arrived: int) -> None:
    """Milliseconds, until the child leads its group: a signal to the group would be lost before."""
    os.close(arrived)
    os.read(ready, 1)
    os.close(ready)


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
