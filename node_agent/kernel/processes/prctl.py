"""Linux's `prctl`. It is found without `ctypes`, whose import takes longer than the start of a worker's process."""

import _ctypes


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int


PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
prctl = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]
"""Call `prctl` with these numbers. Return its result, which is -1 for an error."""
