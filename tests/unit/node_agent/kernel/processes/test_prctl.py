"""Calls of Linux's `prctl`."""

import ctypes
import subprocess
import sys

import pytest

from node_agent.kernel.processes.prctl import prctl

PR_GET_DUMPABLE, UNKNOWN = 3, 999_999


def test_a_call_returns_what_ctypes_returns() -> None:
    expected = ctypes.CDLL(None).prctl
    assert prctl(PR_GET_DUMPABLE) == expected(PR_GET_DUMPABLE) >= 0
    assert prctl(UNKNOWN, 1) == expected(UNKNOWN, 1) == -1


def test_it_is_found_without_ctypes_which_may_be_imported_later() -> None:
    program = (
        "import sys; from node_agent.kernel.processes.prctl import prctl\n"
        "print('ctypes' in sys.modules, prctl(3) >= 0)\n"
        "import ctypes\nprint(ctypes.CDLL(None).prctl(3) == prctl(3), ctypes.c_int(7).value)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True", "7"], done.stderr


@pytest.mark.parametrize("lacks", ["del _ctypes.dlsym", "sys.modules['_ctypes'] = None"])
def test_with_another_pythons_ctypes_it_is_found_by_ctypes(lacks) -> None:
    program = (
        f"import _ctypes, ctypes, sys\n{lacks}\n"
        "from node_agent.kernel.processes.prctl import prctl\nprint(prctl(3), prctl(999_999, 1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [str(prctl(PR_GET_DUMPABLE)), "-1"], done.stderr
