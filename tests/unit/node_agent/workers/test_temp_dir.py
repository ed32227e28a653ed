"""The agent's temporary files: its own, and gone when it is."""

import os
import stat
import subprocess
import sys

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


def test_what_an_agent_left_that_was_killed_with_its_guardian_goes_with_the_next_one(tmp_path):
    """The folder of an agent that lives stays, known by its lock, and so does another program's."""
    living, next_one = TempDir(), TempDir()
    kept = [
        living.path("error.json"),
        str(tmp_path / "node-agent-logs-0123456789abcdef"),
        str(tmp_path / "node-agent-x"),
    ]
    for path in kept:
        os.makedirs(path)
    with open(f"{next_one.path('x')}", "x"):
        pass
    code = "from node_agent.workers.temp_dir import TempDir; open(TempDir().path('left'), 'x'); import os; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert len(os.listdir(tmp_path)) == 5
    next_one.remove()
    assert sorted(os.listdir(tmp_path)) == sorted(
        [os.path.basename(living.folder), *(os.path.basename(path) for path in kept[1:])]
    )
    living.remove()


def test_a_link_in_its_place_is_left_alone(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "node-agent-0123456789abcdef").symlink_to(tmp_path / "elsewhere")
    temp_dir = TempDir()
    temp_dir.path("x")
    temp_dir.remove()
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "node-agent-0123456789abcdef"]
