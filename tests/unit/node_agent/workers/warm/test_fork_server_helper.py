"""What the process that imports for the workers refuses, and what it gives away before it forks."""

import os
import socket
import threading

from node_agent.workers.warm import fork_server_helper


def test_a_module_that_opens_a_gpu_is_refused(tmp_path, monkeypatch):
    """Any file will do for one: the rule goes by its path."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "opens_a_gpu.py").write_text(f"device = open({str(tmp_path / 'nvidia0')!r}, 'w')\n")
    monkeypatch.setattr(fork_server_helper, "DEVICES", (str(tmp_path / "nvidia"),))
    assert fork_server_helper._load("opens_a_gpu") == (
        f"opens_a_gpu opens {tmp_path}/nvidia0 when it is imported, and a fork cannot share it"
    )


def test_the_devices_are_those_of_the_kernels_gpu_drivers():
    for path in ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD128", "/dev/accel0"):
        assert path.startswith(fork_server_helper.DEVICES)
    assert not "/dev/null".startswith(fork_server_helper.DEVICES)


def test_a_process_that_cannot_be_forked_is_said_to_have_failed():
    control, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forked, report = os.pipe()
    pairs = [socket.socketpair() for _ in range(2)]
    os.write(report, fork_server_helper.FORKED.pack(1, 4711))
    os.close(report)
    with control, agent:
        fork_server_helper._announce(forked, pairs, control)
        answers = [socket.recv_fds(agent, 64, 1)[:2] for _ in range(2)]
    assert answers[0] == (b"failed", [])
    assert answers[1][0] == b"4711"
    os.close(answers[1][1][0])


def test_threads_have_names():
    here = threading.get_native_id()
    assert fork_server_helper._name(str(here)) and fork_server_helper._name("0") == "?"
