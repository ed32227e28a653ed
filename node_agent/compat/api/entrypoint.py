"""Entrypoints of workers, functions and commands: how to start them, and how to get their values."""

import asyncio
import multiprocessing
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from string import Template
from typing import Any

from rdzv_protocol import words as protocol_words

from node_agent import words
from node_agent.compat.api.children import START_METHODS, ChildSpec, FunctionProcess, StartMethod
from node_agent.compat.api.errors import LaunchError
from node_agent.compat.api.pickled_call import PickledCall
from node_agent.kernel.processes.process import CommandProcess, Process

Arguments = Mapping[int, Sequence[Any]]
"""Arguments of each worker, by local rank."""
Command = str | os.PathLike[str] | Sequence[str]
Environment = Mapping[str, str]


class CommandEntry:
    """Starts workers in each round: a program and its first arguments, followed by each worker's own."""

    returned: Collection[int] = ()
    counts_stopped = True
    """Whether workers that were stopped after another's failure also count as failed. In torch only commands do."""

    def __init__(self, command: Command, args: Arguments) -> None:
        first = [command] if isinstance(command, str | os.PathLike) else command
        self._first = [os.fspath(part) for part in first]
        self.title = self._first[0]
        """Name for people."""
        self._args = dict(args)
        self._started: set[int] = set()
        self.not_started: OSError | None = None
        """Why the program could not be started in the last round."""

    def start(self, local_rank: int, environment: Environment, cpus: Collection[int], out: int, err: int) -> Process:
        """Start the worker with this local rank. Raises `OSError`."""
        command = [*self._first, *map(str, self._args[local_rank])]
        try:
            process = CommandProcess(command, environment, stdout=out, stderr=err, cpus=cpus)
        except OSError as error:
            self.not_started = error
            raise
        self._started.add(local_rank)
        return process

    def values(self) -> dict[int, Any]:
        """Return the values of the workers, by local rank, once all of them have exited 0. Raises `LaunchError`."""
        return dict.fromkeys(sorted(self._started))

    def let_go(self) -> None:
        """Release workers that wait for others. A command never waits."""

    def forget(self) -> None:
        """Drop the data of the last round's workers."""
        self._started.clear()
        self.not_started = None

    def close(self) -> None:
        """Close the entry, which will not be started or asked for values again."""


class FunctionEntry:
    """Starts workers that call a function, each with its own arguments. Raises `TypeError` if they cannot be sent."""

    counts_stopped = False
    not_started: OSError | None = None

    def __init__(self, method: StartMethod, function: Callable[..., Any], args: Arguments) -> None:
        self.title = getattr(function, "__qualname__", None) or repr(function)
        self._method = method
        self._processes: dict[int, FunctionProcess] = {}
        self._gates: dict[int, socket.socket] = {}
        """Sockets to workers that run, or wait for the others, by local rank."""
        self.returned: set[int] = set()
        """Local ranks of workers that have returned. They wait for the others, or have ended."""
        self._args = dict(args)
        self._calls: dict[int, PickledCall] = {}
        """Calls by the identity of their arguments. Identical argument objects are pickled once."""
        try:
            for given in args.values():
                if id(given) not in self._calls:
                    self._calls[id(given)] = PickledCall((function, tuple(given)), is_sent=method != "fork")
        except BaseException:
            self.close()
            raise

    def start(self, local_rank: int, environment: Environment, cpus: Collection[int], out: int, err: int) -> Process:
        own, gate = socket.socketpair()
        with gate:
            spec = ChildSpec(self._calls[id(self._args[local_rank])], environment, out, err, cpus, gate)
            process = FunctionProcess(self._method, spec, partial(self._ended, local_rank))
        self._processes[local_rank], self._gates[local_rank] = process, own
        asyncio.get_running_loop().add_reader(own.fileno(), self._hear, local_rank)
        return process

    def values(self) -> dict[int, Any]:
        return {local_rank: self._value(local_rank) for local_rank in sorted(self._processes)}

    def let_go(self) -> None:
        """Release workers that wait for the others, now or later, because all have returned or are being stopped."""
        while self._gates:
            gate = self._gates.popitem()[1]
            with suppress(OSError):  # it has ended
                gate.send(b".")
            asyncio.get_running_loop().remove_reader(gate.fileno())
            gate.close()

    def forget(self) -> None:
        for process in self._processes.values():
            process.discard()
        self._processes.clear()
        self.returned.clear()
        self.let_go()

    def close(self) -> None:
        self.forget()
        for call in self._calls.values():
            call.close()

    def _hear(self, local_rank: int) -> None:
        """Read from a worker that its value is ready, or that the worker has ended."""
        gate = self._gates[local_rank]
        asyncio.get_running_loop().remove_reader(gate.fileno())
        with suppress(ConnectionError):
            if gate.recv(1):
                self._note_return(local_rank)

    def _note_return(self, local_rank: int) -> None:
        """Record that a worker has returned. Release all workers when the last one has."""
        self.returned.add(local_rank)
        if self.returned == self._args.keys():
            self.let_go()

    def _ended(self, local_rank: int, exit_code: int) -> None:
        """Record that a worker has ended, perhaps within its function. After a failure no worker waits for it."""
        if exit_code == 0:
            self._note_return(local_rank)
        else:
            self.let_go()

    def _value(self, local_rank: int) -> Any:
        try:
            return self._processes[local_rank].value()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise LaunchError(words.api.value_unreadable(local_rank, problem)) from error


Entry = CommandEntry | FunctionEntry


def make_entry(entrypoint: Callable[..., Any] | Command, args: Arguments, start_method: StartMethod) -> Entry:
    """Return the entry of a function or a command. Raises `TypeError`, `ValueError`, or `RuntimeError` in an importing
    worker.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(words.api.UNGUARDED)
    if start_method not in START_METHODS:
        raise ValueError(words.api.not_a_start_method(START_METHODS, start_method))
    for local_rank, given in args.items():
        if not isinstance(given, Sequence):
            raise TypeError(words.api.not_arguments(f"args[{local_rank}]", given))
    if callable(entrypoint):
        return FunctionEntry(start_method, entrypoint, args)
    if isinstance(entrypoint, list | tuple) and not entrypoint:
        raise ValueError(words.api.NO_PROGRAM)
    if isinstance(entrypoint, str | os.PathLike | list | tuple):
        return CommandEntry(entrypoint, args)
    raise TypeError(words.api.not_an_entrypoint(entrypoint))


def with_local_rank(args: tuple[Any, ...], local_rank: int) -> tuple[Any, ...]:
    """Return the arguments of one worker. `${local_rank}` in texts is its local rank, as under torch's launcher."""
    if not any(isinstance(each, str) and "$" in each for each in args):
        return args  # the same for all, so they are sent once
    return tuple(
        Template(each).safe_substitute(local_rank=local_rank) if isinstance(each, str) else each for each in args
    )


def cpu_sets(options: Any, environment: Environment, workers: int) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each worker, empty for all, by torch's `NumaOptions` or a mode of `--numa-binding`.

    Raises `ValueError` if the workers cannot be bound as requested. With torch's `should_fall_back_if_binding_fails`,
    impossible bindings are omitted.
    """
    if options is None:
        return ()
    mode = getattr(options, "affinity_mode", options)
    mode = str(getattr(mode, "value", mode))
    from node_agent.features.numa import MODES, binding
    from node_agent.kernel.workers.devices import Devices

    if mode not in MODES:
        raise ValueError(words.api.not_numa_options(MODES, options))
    try:
        return binding.near_gpus(mode, Devices(environment, addresses=True).pci_addresses, workers)
    except binding.NumaError as error:
        if getattr(options, "should_fall_back_if_binding_fails", False):
            return ()
        raise ValueError(protocol_words.flags.bad_value("numa_options", str(error))) from None
