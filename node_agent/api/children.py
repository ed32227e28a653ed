"""The children that run functions, by multiprocessing's three ways to start one.

Their internals are used where its public classes do not let a child be a worker before it is anything else.
"""

import io
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing import context, get_context, popen_fork, popen_forkserver, popen_spawn_posix, reduction, spawn
from multiprocessing import forkserver as server
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import getfd
from multiprocessing.util import Finalize
from typing import Any, Literal, cast

from node_agent.api.child import Arrival, Call, Descriptor, Errand, Here, arrive_from_forkserver, run, run_forked
from node_agent.api.pickled_call import Parcel
from node_agent.workers.process import CommandProcess

StartMethod = Literal["spawn", "fork", "forkserver"]

UNGUARDED = (
    "a worker imports the script that started it, which would start workers again: "
    'put what starts them under `if __name__ == "__main__":`, or use start_method="fork"'
)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One worker to start."""

    call: Call
    parcel: Parcel | None
    """The same for a child that is not forked from here."""
    result: int
    environment: Mapping[str, str]
    stdout: int
    stderr: int
    cpus: Collection[int]
    opened: list[int] = field(default_factory=list)
    """What was opened for the start alone: for the caller to close."""


class Spawned(popen_spawn_posix.Popen):
    """multiprocessing's, but executed as a command is: nothing of the user's runs before the worker is in its place."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        super().__init__(_process("spawn", spec))

    def _launch(self, process: BaseProcess) -> None:
        spec = self._spec
        tracker = getfd()
        assert tracker is not None
        data = _for_a_new_interpreter(self, process, spec, process.name)
        pipe, parent_end = os.pipe()
        self.finalizer = Finalize(self, close_fds, (parent_end,))
        try:
            self._command = CommandProcess(
                spawn.get_command_line(tracker_fd=tracker, pipe_handle=pipe),
                spec.environment,
                spec.stdout,
                spec.stderr,
                spec.cpus,
                pass_fds=(*self._fds, tracker, pipe),  # type: ignore[attr-defined]
            )
        finally:
            os.close(pipe)
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


class Forked(popen_fork.Popen):
    def __init__(self, spec: ChildSpec) -> None:
        ready, arrived = os.pipe()
        try:
            arrival = _arrival(spec, Here, arrived, os.getpid())
            errand = Errand(Here(spec.result), call=spec.call)
            super().__init__(get_context("fork").Process(target=run_forked, args=(arrival, errand)))
        except BaseException:
            close_fds(ready, arrived)
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


class Served(popen_forkserver.Popen):
    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        super().__init__(_process("forkserver", spec))

    def _launch(self, process: BaseProcess) -> None:
        ready, arrived = os.pipe()
        try:
            name = _Named(process.name, self._spec, arrived)
            data = _for_a_new_interpreter(self, process, self._spec, name)
            self.sentinel, pipe = server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
            parent_end = os.dup(pipe)
            self.finalizer = Finalize(self, close_fds, (self.sentinel, parent_end))
            with open(pipe, "wb") as file:
                file.write(data)
            self.pid = server.read_signed(self.sentinel)
        except BaseException as error:
            close_fds(ready, arrived)
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


CHILDREN: Mapping[StartMethod, type[Spawned] | type[Forked] | type[Served]] = {
    "spawn": Spawned,
    "fork": Forked,
    "forkserver": Served,
}


def _process(method: StartMethod, spec: ChildSpec) -> BaseProcess:
    process: BaseProcess = cast(Any, get_context(method)).Process(target=run, args=(_Errand(spec),))
    return process


class _Errand:
    """Becomes an `Errand` in the worker, when `multiprocessing` sends it there."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec

    def __reduce__(self) -> tuple[Any, ...]:
        spec, parcel = self._spec, self._spec.parcel
        assert parcel
        spec.opened.append(parcel.open(context.get_spawning_popen()))
        return Errand, (reduction.DupFd(spec.result), None, reduction.DupFd(spec.opened[-1]), parcel.by_value)


class _Named:
    """The name of a process whose reading, which comes before all else, lets it arrive."""

    def __init__(self, name: str, spec: ChildSpec, arrived: int) -> None:
        self._name, self._spec, self._arrived = name, spec, arrived

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive_from_forkserver, (_arrival(self._spec, reduction.DupFd, self._arrived, None), self._name)


def _arrival(spec: ChildSpec, descriptor: Callable[[int], Descriptor], arrived: int, parent: int | None) -> Arrival:
    return Arrival(
        stdout=descriptor(spec.stdout),
        stderr=descriptor(spec.stderr),
        arrived=descriptor(arrived),
        environment=dict(spec.environment),
        cpus=tuple(spec.cpus),
        parent=parent,
    )


def _for_a_new_interpreter(popen: Any, process: BaseProcess, spec: ChildSpec, name: Any) -> bytes:
    """What `multiprocessing.spawn` reads in the child: how to prepare the interpreter, and the process to be."""
    preparation = {**spawn.get_preparation_data(process.name), "name": name}
    if spec.parcel and spec.parcel.by_value:
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


def close_fds(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
