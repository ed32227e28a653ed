"""Fork server: what it refuses, and its messages about it."""

import errno
import os
import socket
import sys
import threading

import pytest

from node_agent.features.warm import fork_server_helper, words


def test_a_module_that_opens_a_gpu_is_refused(tmp_path, monkeypatch):
    """Any file serves as a GPU, because the rule goes by its path."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "opens_a_gpu.py").write_text(f"device = open({str(tmp_path / 'nvidia0')!r}, 'w')\n")
    monkeypatch.setattr(fork_server_helper, "DEVICES", (str(tmp_path / "nvidia"),))
    assert fork_server_helper._load("opens_a_gpu") == words.opens_device("opens_a_gpu", f"{tmp_path}/nvidia0")


def test_the_devices_match_the_kernels_gpu_drivers():
    for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD128", "/dev/accel0"):
        assert path.startswith(fork_server_helper.DEVICES)
    assert not "/dev/null".startswith(fork_server_helper.DEVICES)


def test_if_no_process_can_be_forked_the_fork_server_reports_it(monkeypatch):
    def fail() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fail)
    monkeypatch.setattr(os, "_exit", sys.exit)
    control, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    orders, theirs = socket.socketpair()
    with control, agent, orders, theirs:
        socket.send_fds(agent, [b"fork"], [theirs.fileno()])
        with pytest.raises(SystemExit):
            fork_server_helper._serve(control, os.getpid())
        told = words.cannot_fork("Resource temporarily unavailable")
        assert fork_server_helper._load("zlib") == told
        assert agent.recv(100).decode() == f"refused {told}"


def test_threads_have_names():
    here = threading.get_native_id()
    assert fork_server_helper._name(str(here)) and fork_server_helper._name("0") == "?"
