"""The agent's temporary files: its own, and gone when it is."""

import os
import stat

import pytest

from node_agent.workers.temp_dir import TempDir


@pytest.fixture(autouse=True)
def tmpdir_of_the_agent(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_nothing_is_made_before_it_is_needed(tmp_path):
    TempDir().remove()
    assert os.listdir(tmp_path) == []


def test_a_file_can_be_written_there_by_this_user_alone(tmp_path):
    temp_dir = TempDir()
    path = temp_dir.path("timer")
    with open(path, "x"):
        pass
    assert path == temp_dir.path("timer") != TempDir().path("timer")
    assert path.startswith(f"{tmp_path}/node-agent-")
    assert stat.S_IMODE(os.stat(temp_dir.folder).st_mode) == 0o700


def test_nothing_is_left_of_it(tmp_path):
    temp_dir = TempDir()
    os.makedirs(temp_dir.path("attempt_0/1"))
    temp_dir.remove()
    assert os.listdir(tmp_path) == []
    temp_dir.remove()
