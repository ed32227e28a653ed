"""Forbids system calls as a container's seccomp profile does: `python seccomp.py ERRNO CALL... -- COMMAND`."""

import ctypes
import os
import struct
import sys

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD_NUMBER, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def forbid(calls: list[int], error: int) -> None:
    """Let these system calls, given by number, fail with this error in this process and in all that it starts."""
    steps = [(_LOAD_NUMBER, 0, 0, 0)]
    for call in calls:
        steps += [(_IF_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ERROR | error)]
    code = b"".join(struct.pack("HBBI", *step) for step in [*steps, (_RETURN, 0, 0, _ALLOW)])
    kept = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    error, *words = sys.argv[1:]
    at = words.index("--")
    forbid([int(each) for each in words[:at]], int(error))
    os.execvp(words[at + 1], words[at + 1 :])
