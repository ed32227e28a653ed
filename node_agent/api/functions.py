"""Workers that run a Python function, started by multiprocessing's three methods.

- `spawn`: a new interpreter, executed with the worker's environment, output and session, as a command is.
- `fork`: a copy of this process, made by the thread that runs the agent.
- `forkserver`: a copy of multiprocessing's fork server, which is one for the whole process and stays when workers go.

However it is started, the worker leads its own session, writes to the descriptors it is given, and is killed by the
kernel when the thread that started it ends (`forkserver`: when the fork server does, which ends with this process).
"""

import os
import pickle
from collections.abc import Callable, Collection, Mapping
from typing import Any

from node_agent.api.child import LENGTH_BYTES, Call
from node_agent.api.children import CHILDREN, ChildSpec, StartMethod, close_fds
from node_agent.api.pickled_call import Parcel

START_METHODS: tuple[StartMethod, ...] = ("spawn", "fork", "forkserver")


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
        spec = ChildSpec(function.call, function.parcel, self._result, environment, stdout, stderr, cpus)
        try:
            self._child = CHILDREN[function.method](spec)
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
