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


def test_a_file_can_be_written_there(tmp_path):
    path = TempDir().path("timer")
    with open(path, "x"):
        pass
    assert path.startswith(f"{tmp_path}/node-agent-")


def test_asking_twice_gives_the_same_path():
    scratch = TempDir()
    assert scratch.path("timer") == scratch.path("timer")


def test_two_agents_do_not_share_files():
    assert TempDir().path("timer") != TempDir().path("timer")


def test_it_is_this_users_alone(tmp_path):
    TempDir().path("timer")
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_is_left_of_it(tmp_path):
    scratch = TempDir()
    os.makedirs(scratch.path("attempt_0/1"))
    scratch.remove()
    assert os.listdir(tmp_path) == []
    scratch.remove()
