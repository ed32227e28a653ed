"""Calls of Linux's `prctl`, and what stands in for functions that a Python lacks."""

import ctypes
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import node_agent
from node_agent.kernel.processes import system_calls
from node_agent.kernel.processes.system_calls import (
    memfd_create_by_name,
    pidfd_open_by_number,
    pidfd_send_signal_by_number,
    prctl,
)

PR_GET_DUMPABLE, UNKNOWN = 3, 999_999


def test_a_call_returns_what_ctypes_returns() -> None:
    expected = ctypes.CDLL(None).prctl
    assert prctl(PR_GET_DUMPABLE) == expected(PR_GET_DUMPABLE) >= 0
    assert prctl(UNKNOWN, 1) == expected(UNKNOWN, 1) == -1


def test_it_is_found_without_ctypes_which_may_be_imported_later() -> None:
    program = (
        "import sys; from node_agent.kernel.processes.system_calls import prctl\n"
        "print('ctypes' in sys.modules, prctl(3) >= 0)\n"
        "import ctypes\nprint(ctypes.CDLL(None).prctl(3) == prctl(3), ctypes.c_int(7).value)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True", "7"], done.stderr


@pytest.mark.parametrize("lacks", ["del _ctypes.dlsym", "sys.modules['_ctypes'] = None"])
def test_with_another_pythons_ctypes_it_is_found_by_ctypes(lacks) -> None:
    program = (
        f"import _ctypes, ctypes, sys\n{lacks}\n"
        "from node_agent.kernel.processes.system_calls import prctl\nprint(prctl(3), prctl(999_999, 1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [str(prctl(PR_GET_DUMPABLE)), "-1"], done.stderr


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_without_pythons_functions_a_process_is_watched_and_signalled(sleeper) -> None:
    descriptor = pidfd_open_by_number(sleeper.pid)
    assert not os.get_inheritable(descriptor)
    assert not select.select([descriptor], [], [], 0)[0]
    pidfd_send_signal_by_number(descriptor, 0)
    pidfd_send_signal_by_number(descriptor, signal.SIGTERM)
    assert select.select([descriptor], [], [], 60)[0]
    assert sleeper.wait() == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        pidfd_send_signal_by_number(descriptor, signal.SIGTERM)
    os.close(descriptor)
    with pytest.raises(ProcessLookupError):
        pidfd_open_by_number(sleeper.pid)


def test_without_pythons_function_a_file_in_memory_is_made() -> None:
    descriptor = memfd_create_by_name("a name")
    assert os.write(descriptor, b"text") == 4
    assert os.pread(descriptor, 9, 0) == b"text"
    assert not os.get_inheritable(descriptor)
    assert os.readlink(f"/proc/self/fd/{descriptor}") == "/memfd:a name (deleted)"
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_RDWR
    os.close(descriptor)
    with pytest.raises(OSError, match="Invalid argument"):
        memfd_create_by_name("x" * 300)


def test_an_error_of_a_call_that_is_allowed_does_not_count_as_missing(monkeypatch) -> None:
    def fail(pid: int) -> int:
        raise OSError(24, "no descriptor is left")

    monkeypatch.setattr(system_calls, "pidfd_open", fail)
    assert system_calls.why_no_pidfd() == ""


def test_no_other_module_uses_functions_that_a_python_may_lack() -> None:
    lacking = re.compile(r"\b(os|signal)(\.|, \")(pidfd_\w+|memfd_create|MFD_\w+|P_PIDFD)\b")
    root = Path(node_agent.__file__).parent.parent
    modules = [
        file for each in ("node_agent", "rdzv_server", "rdzvctl", "protocol") for file in root.glob(f"{each}/**/*.py")
    ]
    uses = {str(file.relative_to(root)) for file in modules if lacking.search(file.read_text())}
    assert uses == {"node_agent/kernel/processes/system_calls.py"}
