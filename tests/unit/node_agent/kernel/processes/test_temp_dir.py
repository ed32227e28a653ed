"""The agent's temporary files belong to it, and are removed when it exits."""

import os
import shutil
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from node_agent import words
from node_agent.kernel.processes import temp_dir
from node_agent.kernel.processes.temp_dir import TempDir
from tests.support.message_search import has_message

LEAVES = (
    "from node_agent.kernel.processes.temp_dir import TempDir; made = TempDir(); made.make(); "
    "open(made.path('{name}'), 'x'); import os; os._exit(9)"
)
"""Program of an agent that is killed together with its guardian."""


def made():
    temp_dir = TempDir()
    temp_dir.make()
    return temp_dir


@pytest.fixture(autouse=True)
def tmpdir_of_the_agent(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_nothing_is_made_before_it_is_needed(tmp_path):
    TempDir().remove()
    assert os.listdir(tmp_path) == []


def test_only_this_user_can_write_a_file_there(tmp_path):
    temp_dir = made()
    path = temp_dir.path("timer")
    with open(path, "x"):
        pass
    assert path == temp_dir.path("timer") != TempDir().path("timer")
    assert path.startswith(f"{tmp_path}/node-agent-")
    assert stat.S_IMODE(os.stat(temp_dir.folder).st_mode) == 0o700


def test_the_temporary_folder_is_removed(tmp_path):
    temp_dir = made()
    os.makedirs(temp_dir.path("attempt_0/1"))
    temp_dir.remove()
    assert os.listdir(tmp_path) == []
    temp_dir.remove()


def test_the_folder_of_an_agent_killed_with_its_guardian_is_removed_by_the_next_one(tmp_path):
    """The folder of a living agent stays, recognized by its lock, and so does another program's."""
    living, next_one = made(), made()
    kept = [
        living.path("error.json"),
        str(tmp_path / "node-agent-logs-0123456789abcdef"),
        str(tmp_path / "node-agent-x"),
    ]
    for path in kept:
        os.makedirs(path)
    with open(f"{next_one.path('x')}", "x"):
        pass
    code = LEAVES.format(name="left")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert len(os.listdir(tmp_path)) == 5
    next_one.remove()
    assert sorted(os.listdir(tmp_path)) == sorted(
        [os.path.basename(living.folder), *(os.path.basename(path) for path in kept[1:])]
    )
    living.remove()


def test_the_folder_of_another_machine_stays_because_its_lock_is_invisible_here(tmp_path, monkeypatch):
    """Nodes may share a TMPDIR on which locks are visible only to their own node."""
    mounts(tmp_path, monkeypatch, f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw - nfs4 files:/tmp rw\n")
    code = LEAVES.format(name="used")
    (tmp_path / "boot_id").write_text("another machine")
    patch = f"from node_agent.kernel.processes import temp_dir; temp_dir._BOOT_ID = {str(tmp_path / 'boot_id')!r}; "
    assert subprocess.run([sys.executable, "-c", patch + code]).returncode == 9
    (others,) = tmp_path.glob("node-agent-*")
    made().remove()
    assert (others / "used").exists()


def mounts(tmp_path, monkeypatch, text):
    """Simulate these mounts."""
    (tmp_path / "mountinfo").write_text(text)
    monkeypatch.setattr(temp_dir, "_MOUNTS", str(tmp_path / "mountinfo"))


def test_a_folder_from_before_a_reboot_is_removed_from_the_machines_own_disk(tmp_path, monkeypatch):
    own = f"2 1 0:2 / {tmp_path} rw,noatime shared:1 - xfs /dev/a rw\n"
    mounts(tmp_path, monkeypatch, f"1 0 0:1 / / rw - nfs files:/ rw\n{own}")
    old, strange = tmp_path / "node-agent-0badb007-0123456789abcdef", tmp_path / "node-agent-logs-0123456789abcdef"
    for folder in (old, strange):
        folder.mkdir()
    made().remove()
    assert not old.exists() and strange.exists()


@pytest.mark.parametrize(
    ("mounted", "is_own"),
    [
        ("1 0 0:1 / / rw - ext4 /dev/a rw", True),
        ("1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /shared\\040disk rw - lustre mds:/ rw", False),
        ("1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /shared rw - lustre mds:/ rw", True),
        ("1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / / rw - nfs4 files:/ rw", False),
        ("", False),
    ],
    ids=["own", "shared", "beside a shared one", "hidden by a shared one", "unknown"],
)
def test_network_file_systems_do_not_count_as_local_disks(tmp_path, monkeypatch, mounted, is_own):
    mounts(tmp_path, monkeypatch, mounted)
    assert temp_dir._is_own_disk("/shared disk/tmp") is is_own


def test_a_symbolic_link_in_place_of_the_file_is_kept(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    left_over, temp_dir = TempDir().folder, TempDir()
    os.symlink(tmp_path / "elsewhere", left_over)
    temp_dir.make()
    temp_dir.remove()
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", os.path.basename(left_over)]


def test_the_folder_has_an_absolute_path_since_a_script_may_change_its_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", ".")
    assert TempDir().folder.startswith(f"{tmp_path}/node-agent-")


def test_an_unusable_tmpdir_is_ignored_and_files_go_to_tmp(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for unusable, why in (("missing", "No such file or directory"), ("file", words.workers.NOT_A_FOLDER)):
        monkeypatch.setenv("TMPDIR", str(tmp_path / unusable))
        assert temp_dir.warning() == words.workers.tmpdir_unusable(str(tmp_path / unusable), why, "/tmp")
        assert os.path.dirname(TempDir().folder) == "/tmp"
    assert os.listdir(tmp_path) == ["file"]


def test_temporary_files_avoid_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=1000, f_bavail=0))
    assert has_message(temp_dir.warning(), words.workers.tmpdir_unusable, problem=words.workers.DISK_FULL)
    assert os.path.dirname(TempDir().folder) == "/tmp"


def test_a_file_system_that_reports_no_size_is_not_full(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=0, f_bavail=0))
    assert temp_dir.warning() == ""
    assert os.path.dirname(TempDir().folder) == str(tmp_path)


def test_a_removed_folder_is_created_again(tmp_path):
    temp_dir = made()
    shutil.rmtree(temp_dir.folder)
    temp_dir.make()
    with open(temp_dir.path("x"), "x"):
        pass
    assert stat.S_IMODE(os.stat(temp_dir.folder).st_mode) == 0o700
    temp_dir.remove()
    assert os.listdir(tmp_path) == []
