"""Entrypoints of workers, functions and commands: what starts them, and what becomes of their values."""

import multiprocessing
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from string import Template
from typing import Any, Protocol

from node_agent.api.children import START_METHODS, UNGUARDED, FunctionProcess, StartMethod
from node_agent.api.errors import LaunchError
from node_agent.api.pickled_call import PickledCall
from node_agent.workers.process import CommandProcess, Process, Start

Arguments = Mapping[int, Sequence[Any]]
"""Arguments of each worker, by local rank."""
Command = str | os.PathLike[str] | Sequence[str]


class Entry(Protocol):
    """Starter of workers, round after round. `forget` is called between two rounds."""

    title: str
    """Name for a person."""
    counts_stopped: bool
    """Whether those that were stopped because another failed are failures, too; torch says so of commands alone."""

    def starter(self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int]) -> Start:
        """Starter of the worker with this local rank."""

    def values(self) -> dict[int, Any]:
        """Return values of the workers, by local rank, once all of them have exited 0. Raises `LaunchError`."""

    def forget(self) -> None:
        """Drop what the workers so far have returned."""

    def close(self) -> None:
        """End it: nothing will be started any more, and no values are asked for."""


class CommandEntry:
    """A program and its first arguments, followed by each worker's own."""

    counts_stopped = True

    def __init__(self, command: Command, args: Arguments) -> None:
        first = [command] if isinstance(command, str | os.PathLike) else command
        self._first = [os.fspath(part) for part in first]
        self.title = self._first[0]
        self._args = args
        self._started: set[int] = set()

    def starter(self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int]) -> Start:
        command = [*self._first, *map(str, self._args[local_rank])]

        def start(out: int, err: int) -> Process:
            process = CommandProcess(command, environment, out, err, cpus)
            self._started.add(local_rank)
            return process

        return start

    def values(self) -> dict[int, Any]:
        return dict.fromkeys(sorted(self._started))

    def forget(self) -> None:
        self._started.clear()

    def close(self) -> None:
        pass


class FunctionEntry:
    """A function, called with each worker's own arguments. Raises `TypeError` if they cannot be sent to a worker."""

    counts_stopped = False

    def __init__(self, method: StartMethod, function: Callable[..., Any], args: Arguments) -> None:
        self.title = getattr(function, "__qualname__", None) or repr(function)
        self._method = method
        self._calls: dict[int, PickledCall] = {}
        self._processes: dict[int, FunctionProcess] = {}
        same: dict[int, PickledCall] = {}  # the very same arguments are sent once
        try:
            for local_rank, given in args.items():
                if id(given) not in same:
                    same[id(given)] = PickledCall((function, tuple(given)), is_sent=method != "fork")
                self._calls[local_rank] = same[id(given)]
        except BaseException:
            self.close()
            raise

    def starter(self, local_rank: int, environment: Mapping[str, str], cpus: Collection[int]) -> Start:
        def start(out: int, err: int) -> Process:
            process = FunctionProcess(self._method, self._calls[local_rank], environment, out, err, cpus)
            self._processes[local_rank] = process
            return process

        return start

    def values(self) -> dict[int, Any]:
        return {local_rank: self._value(local_rank) for local_rank in sorted(self._processes)}

    def forget(self) -> None:
        for process in self._processes.values():
            process.discard()
        self._processes.clear()

    def close(self) -> None:
        self.forget()
        for call in self._calls.values():
            call.close()

    def _value(self, local_rank: int) -> Any:
        try:
            return self._processes[local_rank].value()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise LaunchError(f"local rank {local_rank} returned what cannot be read here: {problem}") from error


def make_entry(entrypoint: Callable[..., Any] | Command, args: Arguments, start_method: StartMethod) -> Entry:
    """Entry of a function or a command. Raises `TypeError`, `ValueError`; `RuntimeError` in an importing worker."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(UNGUARDED)
    if start_method not in START_METHODS:
        raise ValueError(f"start_method: {', '.join(START_METHODS)}; not {start_method!r}")
    for local_rank, given in args.items():
        if not isinstance(given, Sequence):
            raise TypeError(f"args[{local_rank}]: a tuple of arguments, not {given!r:.80}")
    if callable(entrypoint):
        return FunctionEntry(start_method, entrypoint, args)
    if isinstance(entrypoint, str | os.PathLike | list | tuple):
        return CommandEntry(entrypoint, args)
    raise TypeError(f"entrypoint: a function, a program, or a list of a program and arguments, not {entrypoint!r:.80}")


def with_local_rank(args: tuple[Any, ...], local_rank: int) -> tuple[Any, ...]:
    """The arguments of one worker: in texts, `${local_rank}` is its local rank, as under torch's launcher."""
    if not any(isinstance(each, str) and "$" in each for each in args):
        return args  # the same for all: they are sent once
    return tuple(
        Template(each).safe_substitute(local_rank=local_rank) if isinstance(each, str) else each for each in args
    )


def cpu_sets(options: Any, environment: Mapping[str, str], workers: int) -> tuple[frozenset[int], ...]:
    """The CPUs of each worker, or none at all for all of them, by torch's `NumaOptions` or a word of `--numa-binding`.

    Raises `ValueError` if they cannot be bound as asked. With torch's `should_fall_back_if_binding_fails` what cannot
    be done is left out.
    """
    if options is None:
        return ()
    mode = getattr(options, "affinity_mode", options)
    mode = str(getattr(mode, "value", mode))
    from node_agent.workers.devices import DeviceError, pci_addresses
    from node_agent.workers.numa import MODES, NumaError
    from node_agent.workers.numa import cpu_sets as sets_of

    if mode not in MODES:
        raise ValueError(f"numa_options: torch's NumaOptions, or one of {', '.join(MODES)}; not {options!r:.80}")
    try:
        return tuple(sets_of(mode, pci_addresses(environment), workers))
    except (DeviceError, NumaError) as error:
        if getattr(options, "should_fall_back_if_binding_fails", False):
            return ()
        raise ValueError(f"numa_options: {error}") from None
