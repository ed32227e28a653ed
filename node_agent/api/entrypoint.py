"""What the workers run, a function or a command, and what becomes of it."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from string import Template
from typing import Any, Protocol

from node_agent.api.children import StartMethod
from node_agent.api.errors import LaunchError
from node_agent.api.functions import Function, FunctionProcess
from node_agent.workers.process import CommandProcess, Process, Start

Arguments = Mapping[int, tuple[Any, ...]]
"""Of each worker, by local rank."""
Command = str | os.PathLike[str] | Sequence[str]


class Entry(Protocol):
    """Starts workers. Before they are started anew, `forget` is called."""

    title: str
    """What they run, for a person."""
    counts_stopped: bool
    """Whether those that were stopped because another failed are failures, too; torch says so of commands alone."""

    def starter(self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int]) -> Start:
        """What starts the worker with this local rank."""

    def values(self) -> dict[int, Any]:
        """What the workers returned, by local rank, once all of them have exited 0. Raises `LaunchError`."""

    def forget(self) -> None:
        """What the workers so far have returned will not be asked for."""

    def close(self) -> None:
        """Nothing will be started any more, and no values are asked for."""


class CommandEntry:
    """A program and its first arguments, followed by each worker's own."""

    counts_stopped = True

    def __init__(self, command: Command, args: Arguments) -> None:
        first = (
            [os.fspath(command)] if isinstance(command, str | os.PathLike) else [os.fspath(part) for part in command]
        )
        self.title = first[0]
        self._commands = {local_rank: [*first, *map(str, args[local_rank])] for local_rank in args}
        self._started: set[int] = set()

    def starter(self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int]) -> Start:
        return partial(self._start, local_rank, environment, cpus)

    def values(self) -> dict[int, Any]:
        return dict.fromkeys(sorted(self._started))

    def forget(self) -> None:
        self._started.clear()

    def close(self) -> None:
        pass

    def _start(
        self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int], out: int, err: int
    ) -> Process:
        process = CommandProcess(self._commands[local_rank], environment, out, err, cpus)
        self._started.add(local_rank)
        return process


class FunctionEntry:
    """Raises `TypeError` if the function or its arguments cannot be sent to a worker."""

    counts_stopped = False

    def __init__(self, method: StartMethod, function: Callable[..., Any], args: Arguments) -> None:
        self.title = getattr(function, "__qualname__", None) or repr(function)
        self._functions: dict[int, Function] = {}
        self._processes: dict[int, FunctionProcess] = {}
        try:
            for local_rank in args:
                self._functions[local_rank] = self._same(args, local_rank) or Function(
                    method, function, args[local_rank]
                )
        except BaseException:
            self.close()
            raise

    def starter(self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int]) -> Start:
        return partial(self._start, local_rank, environment, cpus)

    def values(self) -> dict[int, Any]:
        return {local_rank: self._value(local_rank) for local_rank in sorted(self._processes)}

    def forget(self) -> None:
        for process in self._processes.values():
            process.discard()
        self._processes.clear()

    def close(self) -> None:
        self.forget()
        for function in self._functions.values():
            function.close()

    def _value(self, local_rank: int) -> Any:
        try:
            return self._processes[local_rank].value()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise LaunchError(f"local rank {local_rank} returned what cannot be read here: {problem}") from error

    def _same(self, args: Arguments, local_rank: int) -> Function | None:
        """What has been made for an earlier local rank with the very same arguments."""
        return next((self._functions[other] for other in self._functions if args[other] is args[local_rank]), None)

    def _start(
        self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int], out: int, err: int
    ) -> Process:
        process = FunctionProcess(self._functions[local_rank], environment, out, err, cpus)
        self._processes[local_rank] = process
        return process


def with_local_rank(args: tuple[Any, ...], local_rank: int) -> tuple[Any, ...]:
    """The arguments of one worker: in texts, `${local_rank}` is its local rank, as under torch's launcher."""
    if not any(isinstance(each, str) and "$" in each for each in args):
        return args  # the same for all: they are sent once
    return tuple(
        Template(each).safe_substitute(local_rank=local_rank) if isinstance(each, str) else each for each in args
    )
