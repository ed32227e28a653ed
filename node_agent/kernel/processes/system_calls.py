"""System calls of Linux for which Python has no function, or for which some builds of Python have none.

When Python is built, it leaves out the functions that the kernel's headers and the C library of that machine do not
have. Pythons of conda, and those that uv installed before July 2026, were built for old systems: they have no
`os.pidfd_open` and no `os.memfd_create`, on any system.
"""

import os
import signal
from collections.abc import Callable
from errno import ENOSYS, EPERM

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434
"""Numbers of these system calls, the same on every processor that Python 3.11 supports."""
_MFD_CLOEXEC = 1


def _found() -> Callable[..., int]:
    """Return the function `prctl` without `ctypes`, whose import takes longer than the start of a worker's process."""
    import _ctypes

    class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL
        _restype_ = Int

    return Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]


def _found_by_ctypes() -> Callable[..., int]:
    import ctypes

    return ctypes.CDLL(None).prctl


try:
    prctl = _found()
except (ImportError, AttributeError):  # another Python may name its parts of `ctypes` differently
    prctl = _found_by_ctypes()
"""Call `prctl` with these numbers. Return its result, which is -1 for an error."""


def _call(function: str, *arguments: int | bytes | None) -> int:
    """Call a function of the C library, and return its result. Raises `OSError`."""
    import ctypes

    try:
        found = ctypes.CDLL(None, use_errno=True)[function]
    except AttributeError:  # the C library is too old
        raise OSError(ENOSYS, os.strerror(ENOSYS), function) from None
    found.restype = ctypes.c_long if function == "syscall" else ctypes.c_int
    result = found(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def pidfd_open_by_number(pid: int) -> int:
    return _call("syscall", _PIDFD_OPEN, pid, 0)


def pidfd_send_signal_by_number(pidfd: int, signum: int) -> None:
    _call("syscall", _PIDFD_SEND_SIGNAL, pidfd, signum, None, 0)


def memfd_create_by_name(name: str) -> int:
    return _call("memfd_create", name.encode(), _MFD_CLOEXEC)


pidfd_open: Callable[[int], int] = getattr(os, "pidfd_open", pidfd_open_by_number)
"""Return a descriptor of a process, which becomes readable when the process has ended. Raises `OSError`."""
pidfd_send_signal: Callable[[int, int], None] = getattr(signal, "pidfd_send_signal", pidfd_send_signal_by_number)
"""Signal the process of a descriptor. Raises `OSError`."""
memfd_create: Callable[[str], int] = getattr(os, "memfd_create", memfd_create_by_name)
"""Return a descriptor of a new, unnamed file in memory, which a program that this process executes does not inherit.
Raises `OSError`.
"""


def why_no_pidfd() -> str:
    """Return why this process cannot watch and signal processes by their descriptors, empty if it can.

    The kernel may be older than Linux 5.3, and a container may forbid calls that its engine does not know.
    """
    try:
        descriptor = pidfd_open(os.getpid())
        try:
            pidfd_send_signal(descriptor, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        return os.strerror(error.errno or EPERM) if error.errno in (ENOSYS, EPERM) else ""
    return ""
