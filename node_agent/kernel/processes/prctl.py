"""Linux's `prctl`. It is found without `ctypes`, whose import takes longer than the start of a worker's process."""

from collections.abc import Callable

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def _found() -> Callable[..., int]:
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
