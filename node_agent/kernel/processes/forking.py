"""Runs a command in a fork of this process. The parent can fork more children while this one is still being set up.

`subprocess` waits for each child until it executes its command. That takes some milliseconds if Python code has to run
in the child first.
"""

import fcntl
import os
import signal
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from errno import EINVAL
from typing import NoReturn

_NOT_SET_UP, _NOT_EXECUTED = 0, 1
_REPORT = struct.Struct("=ii")
"""Message of a child that cannot execute its command to its parent: the step that failed, and the error's number."""
_FIRST_FREE = 3
"""First descriptor that is not a standard stream."""
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores and a program expects not to be ignored."""
_FAILED = 255


class NotSetUp(OSError):
    """Error: the child could not be set up for its command."""


class Fork:
    """A child that leads its own session, and executes a command after `set_up`. Raises `OSError` if it cannot fork.

    `streams`: the descriptors that become its stdin, stdout and stderr, by their numbers 0 to 2; those that are missing
    stay as they are. `passed`: further descriptors that the command inherits.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        streams: Mapping[int, int],
        passed: Collection[int],
        set_up: Callable[[], None],
    ) -> None:
        self._program = command[0]
        reports, report = os.pipe()
        try:
            self.pid = os.fork()
        except BaseException:
            os.close(reports)
            raise
        else:
            if self.pid == 0:
                _become(command, environment, streams, passed, set_up, report)
        finally:
            os.close(report)
        self._reports = reports

    def wait_until_executed(self) -> None:
        """Return when the child executes its command, or has been killed before. Call it once.

        Raises `NotSetUp` if `set_up` failed, and `OSError` if the command cannot be executed. The child then exits.
        """
        with open(self._reports, "rb", 0) as reports:
            report = reports.read()
        if report:
            step, number = _REPORT.unpack(report)
            if step == _NOT_SET_UP:
                raise NotSetUp(number, os.strerror(number))
            raise OSError(number, os.strerror(number), self._program)


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    streams: Mapping[int, int],
    passed: Collection[int],
    set_up: Callable[[], None],
    report: int,
) -> NoReturn:
    """Execute the command in this process, a child. If that fails, report the error and exit."""
    step = _NOT_SET_UP
    try:
        os.setsid()
        set_up()
        for signum in _PYTHON_IGNORES:
            signal.signal(signum, signal.SIG_DFL)
        step = _NOT_EXECUTED
        report = _above_streams(report)
        for target, source in {target: _above_streams(source) for target, source in streams.items()}.items():
            os.dup2(source, target)
        for descriptor in passed:
            os.set_inheritable(descriptor, True)
        _close_all_but({*passed, report})
        os.execvpe(command[0], [*command], environment)
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) and error.errno else EINVAL
        os.write(report, _REPORT.pack(step, number))
    finally:
        os._exit(_FAILED)


def _above_streams(descriptor: int) -> int:
    """Return a copy of a descriptor that replacing the standard streams does not close. It ends with the process."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)


def _close_all_but(kept: Collection[int]) -> None:
    """Close the descriptors that this process itself has inherited: the command must not hold them open."""
    try:
        highest = max(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # no /proc
        highest = os.sysconf("SC_OPEN_MAX")
    first = _FIRST_FREE
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = max(first, descriptor + 1)
    os.closerange(first, highest + 1)
