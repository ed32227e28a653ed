"""The agent's temporary files: its own, and gone when it is."""

import os
import stat

import pytest

from node_agent.scratch import ScratchDir


@pytest.fixture(autouse=True)
def tmpdir_of_the_agent(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_nothing_is_made_before_it_is_needed(tmp_path):
    ScratchDir().remove()
    assert os.listdir(tmp_path) == []


def test_a_worker_can_write_its_error_file():
    path = ScratchDir().error_file(1, 0)
    with open(path, "x") as file:
        file.write("{}")


def test_every_round_and_every_worker_has_a_file_of_its_own():
    scratch = ScratchDir()
    paths = {scratch.error_file(round_, local_rank) for round_ in (1, 2) for local_rank in (0, 1)}
    assert len(paths) == 4


def test_attempts_are_numbered_as_torchruns(tmp_path):
    path = ScratchDir().error_file(3, 5)
    assert path.startswith(f"{tmp_path}/node-agent-")
    assert path.endswith("/attempt_2/5/error.json")


def test_asking_twice_gives_the_same_file():
    scratch = ScratchDir()
    assert scratch.error_file(1, 0) == scratch.error_file(1, 0)


def test_two_agents_do_not_share_files():
    assert ScratchDir().error_file(1, 0) != ScratchDir().error_file(1, 0)


def test_it_is_this_users_alone(tmp_path):
    ScratchDir().error_file(1, 0)
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_nothing_is_left_of_it(tmp_path):
    scratch = ScratchDir()
    with open(scratch.error_file(1, 0), "w") as file:
        file.write("{}")
    scratch.remove()
    assert os.listdir(tmp_path) == []
    scratch.remove()
