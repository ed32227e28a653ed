"""Locks of torch extensions' builds: a lock left by a killed build is reported, one in use is not."""

import os
import subprocess
import sys

import pytest

from node_agent.features.extension_locks import left_over

HOLD = "import os, sys; fd = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print('held', flush=True); sys.stdin.read()"
"""Program that holds a lock as `torch.utils.file_baton.FileBaton` does."""


@pytest.fixture(params=["TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "HOME"])
def place(request, tmp_path):
    """Environment of a worker, and the lock of an extension that it would build."""
    below = {"XDG_CACHE_HOME": "torch_extensions/py311_cpu", "HOME": ".cache/torch_extensions/py311_cpu"}
    folder = tmp_path / below.get(request.param, "") / "fused_adam"
    folder.mkdir(parents=True)
    return {request.param: str(tmp_path)}, str(folder / "lock")


def test_a_lock_is_named_when_its_build_was_killed(place):
    environment, lock = place
    assert left_over(environment) == []
    build = subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with build:
        assert build.stdout.readline() == "held\n"
        assert left_over(environment) == [], "its build continues"
        build.kill()
        build.wait()
    assert left_over(environment) == [lock]


@pytest.mark.torch
def test_torch_puts_it_there(monkeypatch, tmp_path):
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    from torch.utils.file_baton import FileBaton

    for name, folder in (("XDG_CACHE_HOME", "torch_extensions"), ("TORCH_EXTENSIONS_DIR", "")):
        monkeypatch.setenv(name, str(tmp_path))
        build = cpp_extension._get_build_directory("mine", verbose=False)
        assert build.startswith(str(tmp_path / folder))
        baton = FileBaton(os.path.join(build, "lock"))
        assert baton.try_acquire()
        assert left_over(os.environ) == []
        os.close(baton.fd)
        assert left_over(os.environ) == [os.path.join(build, "lock")]
