"""Functions and arguments on their way to workers that are not forked from the agent itself.

Where a plain pickle does, it is a plain pickle, and the worker imports the main module as under `multiprocessing`: what
runs under torch's launcher finds what it finds there. What a plain pickle cannot name (a notebook's functions, standard
input's, lambdas, closures) travels by value with cloudpickle, and no main module is imported.
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


class PickledCall:
    """A function and its arguments. Pickled once, in memory that every worker maps; not at all unless `is_sent`.

    What only a process that is being started can be given (a queue, a shared tensor) is pickled for each one.
    Raises `TypeError` if something in it cannot travel.
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
        """A descriptor of the pickle, for the process that `popen` starts."""
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
    """Stands for a process that is being started, to see whether anything needs one."""

    was_used = False

    def duplicate_for_child(self, fd: int) -> int:
        self.was_used = True
        return fd

    def DupFd(self, fd: int) -> int:
        return fd


def _pickled(call: Call, popen: Any) -> tuple[bytes, bool]:
    """The pickle, and whether the function is in it by value."""
    outer = context.get_spawning_popen()
    context.set_spawning_popen(popen)
    try:
        data = _by_name(call)
        return (_by_value(call), True) if data is None else (data, False)
    finally:
        context.set_spawning_popen(outer)


def _by_name(call: Call) -> bytes | None:
    """Plain pickle; None if the worker could not find what is named."""
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
    # multiprocessing's and torch's own ways first: queues, connections, shared tensors
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
    """Whether a worker can import the main module: a notebook has none, nor has standard input."""
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or os.path.isfile(getattr(main, "__file__", None) or "")


def _is_of_the_source(function: Callable[..., Any]) -> bool:
    """Whether importing the main module again would define it; what was typed into a console since would be missing.

    A decorator's wrapper is defined with the function that it wraps; its code is in the decorator's file.
    """
    code, path = getattr(function, "__code__", None), getattr(sys.modules["__main__"], "__file__", None)
    if code is None or path is None or getattr(function, "__module__", None) != "__main__":
        return True
    if hasattr(function, "__wrapped__"):
        return os.path.isfile(code.co_filename)
    return bool(os.path.abspath(code.co_filename) == os.path.abspath(path))


def _in_memory(data: bytes) -> BinaryIO:
    file = open(os.memfd_create("call", os.MFD_CLOEXEC), "wb")  # noqa: SIM115
    file.write(data)
    file.flush()
    return file
