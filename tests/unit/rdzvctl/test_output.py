"""Output of a command, partly in a process of its own, since its handlers of signals would stay in this one."""

import os
import re
import subprocess
import sys

import pytest

from rdzvctl import words
from rdzvctl.output import Output

WAITS_FOR_A_SERVER = """
import time
from rdzvctl.output import Output, ReaderGone
try:
    Output({}).end_with_reader()
    while True:
        try:
            print("waits", flush=True)
            time.sleep(60)
        except OSError:  # as of a broken connection
            time.sleep(60)
except ReaderGone:
    raise SystemExit(7) from None
"""


def test_a_reader_that_is_gone_is_not_taken_for_a_broken_connection() -> None:
    process = subprocess.Popen((sys.executable, "-c", WAITS_FOR_A_SERVER), stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline() == b"waits\n"
    process.stdout.close()
    try:
        assert process.wait(30) == 7
    finally:
        process.kill()
        process.wait()


COMMAND = "node-agent --endpoint gpu1:29400 --run-id night-run-7 ... SCRIPT"


@pytest.mark.parametrize(
    ("width", "lines"), [(60, 2), (80, 2), (120, 1)], ids=["wider than the terminal", "on its own line", "beside"]
)
def test_a_command_that_people_copy_is_not_broken(
    width: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Output, "size", lambda self: os.terminal_size((width, 24)))
    out = Output({"TERM": "xterm"})
    out.is_terminal = True
    out.step(words.runs.next_step(words.steps.start_more(2, COMMAND)))
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == lines
    assert shown[-1].endswith(COMMAND)


def test_a_command_on_a_screen_that_is_redrawn_is_broken_at_the_width_of_the_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that the terminal itself breaks would shift the rest of the screen."""
    monkeypatch.setattr(Output, "size", lambda self: os.terminal_size((60, 24)))
    out = Output({"TERM": "xterm"})
    out.is_terminal = True
    step = words.runs.next_step(words.steps.start_more(2, COMMAND))
    out.show(lambda: out.step(step))
    shown = re.sub(r"\x1b\[\w", "", capsys.readouterr().out).splitlines()
    assert " ".join(shown) == step
    assert max(map(len, shown)) <= 60
