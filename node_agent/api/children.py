"""Workers that run a Python function, started by multiprocessing's three methods.

- `spawn`: a new interpreter, executed with the worker's environment, output and session, as a command is.
- `fork`: a copy of this process, made by the thread that runs the agent.
- `forkserver`: a copy of multiprocessing's fork server, which is one for the whole process and stays when workers go.

However it is started, the worker leads its own session, writes to the descriptors it is given, and is killed by the
kernel when the thread that started it ends (`forkserver`: when the fork server does, which ends with this process).
multiprocessing's internals are used where its public classes do not let a child be a worker before it is anything else.
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
    ChildSetup,
    Descriptor,
    InheritedDescriptor,
    Task,
    run,
    run_forked,
    set_up_from_forkserver,
)
from node_agent.api.pickled_call import PickledCall
from node_agent.workers.process import CommandProcess

StartMethod = Literal["spawn", "fork", "forkserver"]
START_METHODS: tuple[StartMethod, ...] = ("spawn", "fork", "forkserver")

UNGUARDED = (
    "a worker imports the script that started it, which would start workers again: "
    'put what starts them under `if __name__ == "__main__":`, or use start_method="fork"'
)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One worker to start."""

    call: PickledCall
    result: int
    """A file in memory for the return value."""
    environment: Mapping[str, str]
    stdout: int
    stderr: int
    cpus: Collection[int]
    opened: list[int] = field(default_factory=list)
    """Descriptors of the start alone, for the caller to close."""


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
        reader, ready = os.pipe()
        try:
            setup = _setup(spec, InheritedDescriptor, ready, os.getpid())
            task = Task(InheritedDescriptor(spec.result), call=spec.call.call)
            super().__init__(get_context("fork").Process(target=run_forked, args=(setup, task)))
        except BaseException:
            close_fds(reader, ready)
            raise
        _wait_until_ready(reader, ready)
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
        reader, ready = os.pipe()
        try:
            name = _Name(process.name, self._spec, ready)
            data = _for_a_new_interpreter(self, process, self._spec, name)
            self.sentinel, pipe = server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
            parent_end = os.dup(pipe)
            self.finalizer = Finalize(self, close_fds, (self.sentinel, parent_end))
            with open(pipe, "wb") as file:
                file.write(data)
            self.pid = server.read_signed(self.sentinel)
        except BaseException as error:
            close_fds(reader, ready)
            if isinstance(error, EOFError | ConnectionError):
                raise OSError(f"multiprocessing's fork server has ended: {UNGUARDED}") from error
            raise
        _wait_until_ready(reader, ready)

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


class FunctionProcess:
    """A child that runs a function."""

    def __init__(
        self,
        method: StartMethod,
        call: PickledCall,
        environment: Mapping[str, str],
        stdout: int,
        stderr: int,
        cpus: Collection[int] = (),
    ) -> None:
        self._result = os.memfd_create("result", os.MFD_CLOEXEC)
        spec = ChildSpec(call, self._result, environment, stdout, stderr, cpus)
        try:
            self._child = CHILDREN[method](spec)
        except BaseException:
            os.close(self._result)
            raise
        finally:
            close_fds(*spec.opened)
        self.pid = self._child.pid

    def fileno(self) -> int:
        return self._child.watched()

    def reap(self) -> int:
        exit_code = self._child.reap()
        if exit_code != 0:
            self.discard()
        return exit_code

    def value(self) -> Any:
        """Return value of the function; None if it ended the process instead. Once, after an exit code of 0.

        Raises what unpickling raises, such as `AttributeError` for a class that there is in the worker alone.
        """
        result, self._result = self._result, -1
        with open(result, "rb") as file:
            file.seek(0)
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            return pickle.load(file) if length else None

    def discard(self) -> None:
        """Drop its value: nobody will ask for it."""
        if self._result >= 0:
            os.close(self._result)
            self._result = -1


def _process(method: StartMethod, spec: ChildSpec) -> BaseProcess:
    process: BaseProcess = cast(Any, get_context(method)).Process(target=run, args=(_SentTask(spec),))
    return process


class _SentTask:
    """Becomes a `Task` in the worker, when `multiprocessing` sends it there."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec

    def __reduce__(self) -> tuple[Any, ...]:
        spec = self._spec
        spec.opened.append(spec.call.open(context.get_spawning_popen()))
        return Task, (reduction.DupFd(spec.result), None, reduction.DupFd(spec.opened[-1]), spec.call.by_value)


class _Name:
    """Name of a process whose reading, which comes before all else, sets the child up."""

    def __init__(self, name: str, spec: ChildSpec, ready: int) -> None:
        self._name, self._spec, self._ready = name, spec, ready

    def __reduce__(self) -> tuple[Any, ...]:
        return set_up_from_forkserver, (_setup(self._spec, reduction.DupFd, self._ready, None), self._name)


def _setup(spec: ChildSpec, descriptor: Callable[[int], Descriptor], ready: int, parent: int | None) -> ChildSetup:
    return ChildSetup(
        stdout=descriptor(spec.stdout),
        stderr=descriptor(spec.stderr),
        ready=descriptor(ready),
        environment=dict(spec.environment),
        cpus=tuple(spec.cpus),
        parent=parent,
    )


def _for_a_new_interpreter(popen: Any, process: BaseProcess, spec: ChildSpec, name: Any) -> bytes:
    """Bytes that `multiprocessing.spawn` reads in the child: how to prepare the interpreter, and the process to be."""
    preparation = {**spawn.get_preparation_data(process.name), "name": name}
    if spec.call.by_value:
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


def _wait_until_ready(reader: int, ready: int) -> None:
    """Wait some milliseconds until the child leads its group: a signal to the group would be lost before."""
    os.close(ready)
    os.read(reader, 1)
    os.close(reader)


def close_fds(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
