"""Survivors: when the state is complete, who saves it, and how the process ends. Real signals, without torch."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from node_agent import newest_saved, saved_by_survivors, survivors, words
from tests.support.message_search import has_message
from tests.support.process_info import until

PEER_GONE = "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1234"
HEAD = f"""
import ctypes, os, signal, sys, threading, time
from node_agent import saved_by_survivors as guarded
PEER_GONE = {PEER_GONE!r}
def save(path, step):
    with open(path, "w") as file:
        file.write(f"{{os.getpid()}} {{step}}")
def block():
    "Block the main thread in C, where no handler of Python runs."
    while True:
        ctypes.CDLL(None).pthread_join(ctypes.c_ulong(forever.ident), None)
forever = threading.Thread(target=threading.Event().wait, daemon=True)
forever.start()
survivor = guarded("kept", save)
"""
IN_C = "    print('ready', flush=True)\n    block()\n"
PATIENCE_S = 30.0


class Script:
    """A worker's script, in a process of its own."""

    def __init__(self, folder: Path, body: str) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-uc", HEAD + body), cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.pid = self._process.pid

    def ready(self) -> None:
        assert self._process.stdout and self._process.stdout.readline() == "ready\n"

    def ends(self) -> tuple[int, str]:
        """Return its exit code and what it wrote to stderr, once it has ended."""
        _, err = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, err

    def terminate(self) -> None:
        self._process.terminate()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Script]:
    def start(body: str) -> Script:
        script = Script(tmp_path, body)
        request.addfinalizer(script.close)
        return script

    return start


def kept(folder: Path) -> list[int]:
    """Return the steps of which there is a state in the folder."""
    return sorted(int(name[5:17]) for name in os.listdir(folder / "kept") if name.startswith("step-"))


def test_a_stopped_worker_whose_main_thread_is_blocked_saves_and_ends_by_sigterm(
    start: Callable[[str], Script], tmp_path: Path
) -> None:
    script = start(f"with survivor:\n    with survivor.update(7): pass\n{IN_C}")
    script.ready()
    script.terminate()
    code, err = script.ends()
    assert code == -signal.SIGTERM
    assert has_message(err, words.survivors.saved, step=7)
    saved = newest_saved(tmp_path / "kept")
    assert saved and saved.step == 7
    assert Path(saved.path).read_text() == f"{script.pid} 7"


def test_a_worker_without_a_completed_step_ends_by_sigterm_without_saving(
    start: Callable[[str], Script], tmp_path: Path
) -> None:
    script = start(f"with survivor:\n{IN_C}")
    script.ready()
    script.terminate()
    assert script.ends() == (-signal.SIGTERM, "")
    assert newest_saved(tmp_path / "kept") is None


def test_a_worker_whose_peer_is_gone_saves_and_fails_with_its_error(
    start: Callable[[str], Script], tmp_path: Path
) -> None:
    code, err = start(
        "with survivor:\n    with survivor.update(3): pass\n    raise RuntimeError(PEER_GONE)\n"
    ).ends()  # fmt: skip
    assert code == 1 and PEER_GONE in err
    assert kept(tmp_path) == [3]


def test_a_worker_that_fails_by_itself_saves_nothing(start: Callable[[str], Script], tmp_path: Path) -> None:
    code, _ = start("with survivor:\n    with survivor.update(3): pass\n    raise ValueError('loss is nan')\n").ends()
    assert code == 1
    assert newest_saved(tmp_path / "kept") is None


def test_an_update_that_failed_does_not_leave_a_complete_state(start: Callable[[str], Script], tmp_path: Path) -> None:
    code, _ = start(
        "with survivor:\n    with survivor.update(3): pass\n"
        "    with survivor.update(4):\n        raise RuntimeError(PEER_GONE)\n"
    ).ends()
    assert code == 1
    assert newest_saved(tmp_path / "kept") is None


def test_a_worker_stopped_in_an_update_ends_it_first(start: Callable[[str], Script], tmp_path: Path) -> None:
    """The main thread continues in Python. The update ends after the signal, and no other one begins."""
    script = start(
        "with survivor:\n    with survivor.update(1):\n        print('ready', flush=True)\n"
        "        while not survivor._turn.locked(): time.sleep(0.01)\n"
        "    with survivor.update(2): pass\n    block()\n"
    )
    script.ready()
    script.terminate()
    assert script.ends()[0] == -signal.SIGTERM
    assert kept(tmp_path) == [1]


def test_a_worker_in_an_update_that_does_not_end_saves_nothing(start: Callable[[str], Script], tmp_path: Path) -> None:
    script = start(
        "from node_agent import survivors\nsurvivors.UPDATE_S = 0.1\n"
        f"with survivor:\n  with survivor.update(1):\n{IN_C}"
    )
    script.ready()
    script.terminate()
    code, err = script.ends()
    assert code == -signal.SIGTERM and has_message(err, words.survivors.in_an_update)
    assert newest_saved(tmp_path / "kept") is None


def test_a_save_that_takes_too_long_does_not_keep_the_worker(start: Callable[[str], Script], tmp_path: Path) -> None:
    script = start(
        "survivor = guarded('kept', lambda path, step: threading.Event().wait(), limit_s=0.1)\n"
        f"with survivor:\n    with survivor.update(1): pass\n{IN_C}"
    )
    script.ready()
    script.terminate()
    code, err = script.ends()
    assert code == -signal.SIGTERM and has_message(err, words.survivors.too_slow)
    assert newest_saved(tmp_path / "kept") is None


def test_the_scripts_own_handler_runs_and_ends_the_script(start: Callable[[str], Script], tmp_path: Path) -> None:
    script = start(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "with survivor:\n    with survivor.update(1): pass\n    print('ready', flush=True)\n"
        "    while True: time.sleep(0.01)\n"
    )
    script.ready()
    script.terminate()
    assert script.ends()[0] == 5
    assert kept(tmp_path) == [1]


def test_a_forked_child_has_the_default_signal_and_wakes_nothing(
    start: Callable[[str], Script], tmp_path: Path
) -> None:
    """Such as a process of a DataLoader."""
    code, _ = start(
        "with survivor:\n    with survivor.update(1): pass\n"
        "    if (child := os.fork()) == 0: block()\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM\n"
    ).ends()
    assert code == 0
    assert newest_saved(tmp_path / "kept") is None


def test_after_the_block_sigterm_has_its_handler_back(start: Callable[[str], Script]) -> None:
    code, _ = start("with survivor: pass\nassert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n").ends()
    assert code == 0


def test_it_needs_the_main_thread(tmp_path: Path) -> None:
    found: list[str] = []

    def run() -> None:
        try:
            saved_by_survivors(tmp_path, print).__enter__()
        except RuntimeError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [words.survivors.MAIN_THREAD_ONLY]


# Several survivors.

SAVERS = (
    "def save(path, step):\n    open(f'saving-{os.getpid()}', 'w')\n"
    "    while not os.path.exists('go'): time.sleep(0.01)\n    open(path, 'w')\n"
    "survivor = guarded('kept', save)\n"
)


def peer_gone_after(step: int, before: str = "") -> str:
    return f"{before}with survivor:\n    with survivor.update({step}): pass\n    raise RuntimeError(PEER_GONE)\n"


def saving(folder: Path) -> list[int]:
    """Return the pids of the processes that have begun to save."""
    return [int(name.removeprefix("saving-")) for name in os.listdir(folder) if name.startswith("saving-")]


async def test_one_of_several_survivors_saves(start: Callable[[str], Script], tmp_path: Path) -> None:
    scripts = [start(peer_gone_after(4, SAVERS)) for _ in range(3)]
    await until(lambda: len(saving(tmp_path)) == 1)
    (tmp_path / "go").touch()
    errors = [script.ends()[1] for script in scripts]
    assert len(saving(tmp_path)) == 1
    assert sum(has_message(err, words.survivors.saved) for err in errors) == 1


async def test_another_survivor_takes_over_if_the_one_that_saves_dies(
    start: Callable[[str], Script], tmp_path: Path
) -> None:
    scripts = [start(peer_gone_after(4, SAVERS)) for _ in range(2)]
    await until(lambda: len(saving(tmp_path)) == 1)
    (first,) = saving(tmp_path)
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(saving(tmp_path)) == 2)
    (tmp_path / "go").touch()
    assert sorted(script.ends()[0] for script in scripts) == [-signal.SIGKILL, 1]
    assert kept(tmp_path) == [4]


def test_another_survivor_takes_over_if_the_save_fails(start: Callable[[str], Script], tmp_path: Path) -> None:
    fails = "def save(path, step):\n    open('tried', 'x')\n    raise OSError('disk full')\n"
    bad = start(peer_gone_after(4, fails + "survivor = guarded('kept', save)\n"))
    code, err = bad.ends()
    assert code == 1 and has_message(err, words.survivors.not_saved, step=4, why="OSError: disk full")
    assert newest_saved(tmp_path / "kept") is None
    start(peer_gone_after(4)).ends()
    assert kept(tmp_path) == [4]


@pytest.mark.parametrize("order", [(4, 5), (5, 4)])
def test_the_newest_state_stays(order: Sequence[int], start: Callable[[str], Script], tmp_path: Path) -> None:
    for step in order:
        start(peer_gone_after(step)).ends()
    assert kept(tmp_path) == [5]
    assert [name for name in os.listdir(tmp_path / "kept") if "000000000004" in name] == []


def test_a_state_in_parts_is_complete_when_each_part_has_been_saved(
    start: Callable[[str], Script], tmp_path: Path
) -> None:
    for part in (1, 1, 0):
        assert newest_saved(tmp_path / "kept") is None
        own = f"survivor = guarded('kept', save, part=({part}, 2))\n"
        start(peer_gone_after(6, own)).ends()
    saved = newest_saved(tmp_path / "kept")
    assert saved and saved.step == 6
    assert [path[-6:] for path in saved.paths] == ["0-of-2", "1-of-2"]


@pytest.mark.parametrize(
    ("text", "is_peers"),
    [
        (PEER_GONE, True),
        ("NCCL communicator was aborted on rank 1.", True),
        ("Timed out waiting 1800000ms for recv operation to complete", True),
        ("CUDA out of memory", False),
        ("Connection reset by peer", False),
    ],
)
def test_errors_of_peers_are_recognized(text: str, is_peers: bool) -> None:
    error = ValueError("in the loop")
    error.__cause__ = RuntimeError(text)
    assert survivors.is_of_a_peer(error) is is_peers
