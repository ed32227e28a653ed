"""Functions and arguments to send to workers that are not forked from the agent itself.

If a plain pickle works, it is used, and the worker imports the main module as under `multiprocessing`. So programs that
run under torch's launcher find the same modules. Functions that a plain pickle cannot name (from notebooks or standard
input, lambdas, closures) are sent by value with cloudpickle. Then the main module is not imported.
"""

import io
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any, BinaryIO, cast

from node_agent import words
from node_agent.compat.api.child import Call, layers
from node_agent.kernel.processes.system_calls import memfd_create


class PickledCall:
    """A function and its arguments. Pickled once, in memory that every worker maps, and only if `is_sent`.

    Objects that only a starting process can get (a queue, a shared tensor) are pickled for each one. Raises `TypeError`
    if an object cannot be sent.
    """

    def __init__(self, call: Call, *, is_sent: bool) -> None:
        self.call = call
        self.by_value = False
        self._file: BinaryIO | None = None
        if is_sent:
            probe = _Probe()
            data, self.by_value = _pickled(call, probe)
            self._file = None if probe.was_used else _in_memory(data)

    @contextmanager
    def open(self, popen: Any) -> Iterator[int]:
        """Yield a descriptor of the pickle, for the process that `popen` starts."""
        file = self._file or _in_memory(_pickled(self.call, popen)[0])
        try:
            yield file.fileno()
        finally:
            if file is not self._file:
                file.close()

    def close(self) -> None:
        """Free the memory."""
        if self._file:
            self._file.close()


class _Probe:
    """Placeholder for a starting process, to detect objects that need one."""

    was_used = False

    def duplicate_for_child(self, fd: int) -> int:
        self.was_used = True
        return fd

    def DupFd(self, fd: int) -> int:
        return fd


def _pickled(call: Call, popen: Any) -> tuple[bytes, bool]:
    """Return the pickle, and whether it contains the function by value."""
    outer = context.get_spawning_popen()
    context.set_spawning_popen(popen)
    try:
        data = _by_name(call)
        return (_by_value(call), True) if data is None else (data, False)
    finally:
        context.set_spawning_popen(outer)


def _by_name(call: Call) -> bytes | None:
    """Return a plain pickle, None if the worker could not find the names in it."""
    if not all(_is_of_the_source(function) for function in layers(call[0])):
        return None
    try:
        data = bytes(reduction.ForkingPickler.dumps(call))
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return data if _main_has_source() or b"__main__" not in data else None


def _by_value(call: Call) -> bytes:
    import cloudpickle

    file = io.BytesIO()
    pickler = cloudpickle.Pickler(file)
    # multiprocessing's and torch's own reducers first: queues, connections, shared tensors
    pickler.dispatch_table = ChainMap(
        cast(dict[Any, Any], reduction.ForkingPickler(io.BytesIO()).dispatch_table), pickler.dispatch_table
    )
    try:
        pickler.dump(call)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        name = getattr(call[0], "__qualname__", None) or repr(call[0])
        raise TypeError(words.api.call_not_picklable(name, error)) from error
    return file.getvalue()


def _main_has_source() -> bool:
    """Return whether a worker can import the main module. That of a notebook or standard input has no source."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", None) or "")


def _is_of_the_source(function: Callable[..., Any]) -> bool:
    """Return whether importing the main module again would define the function. Functions typed into a console would be
    missing.

    A decorator's wrapper is defined together with the function that it wraps. The wrapper's code is in the decorator's
    file.
    """
    code, path = getattr(function, "__code__", None), getattr(sys.modules["__main__"], "__file__", None)
    if code is None or path is None or getattr(function, "__module__", None) != "__main__":
        return True
    if hasattr(function, "__wrapped__"):
        return os.path.isfile(code.co_filename)
    return bool(os.path.abspath(code.co_filename) == os.path.abspath(path))


def _in_memory(data: bytes) -> BinaryIO:
    file = open(memfd_create("call"), "wb")  # noqa: SIM115
    file.write(data)
    file.flush()
    return file
