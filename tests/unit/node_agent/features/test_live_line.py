"""The live line fits the terminal, ticks, and disappears before other output."""

import asyncio
import os
import pty
from contextlib import closing
from types import SimpleNamespace

import pytest
from rdzv_protocol.log_lines import LineFormat
from rdzv_protocol.messages import Wait

from node_agent.features import live_line
from node_agent.features.live_line import LiveLine, fitted, width
from node_agent.kernel.core.effects import Level
from node_agent.kernel.output.console import ERR, OUT, Console

STANDBY = Wait(reason="standing by: round 1 already has its 2 nodes")
WAIT = Wait(reason="waiting for 1 more node: 3 of 4 joined (a, b, c)", remaining_s=583.0, ending="gives_up")


@pytest.mark.parametrize(
    ("wait", "columns", "shown"),
    [
        (WAIT, 80, "waiting for 1 more node: 3 of 4 joined (a, b, c); gives up in 12 s"),
        (WAIT, 66, "waiting for 1 more node: 3 of 4 joined (a, b, c); gives up in 12 s"),
        (WAIT, 65, "waiting for 1 more node: 3 of 4 joined (a, b, …; gives up in 12 s"),
        (WAIT, 5, "w…; gives up in 12 s"),
        (
            Wait(reason="standing by: round 1 already has its 2 nodes"),
            80,
            "standing by: round 1 already has its 2 nodes",
        ),
        (STANDBY, 20, "standing by: round …"),
        (
            Wait(reason="待机节点一二三四", remaining_s=1.0, ending="starts"),
            30,
            "待机节点一二…; starts in 12 s",
        ),
    ],
)
def test_a_reason_that_does_not_fit_is_cut(wait, columns, shown):
    line = fitted(wait, 12.0, columns)
    assert line == shown
    assert width(line) <= max(columns, 20)


def test_a_combining_character_takes_no_column():
    assert width("e\u0301") == 1


class Terminal:
    """A terminal that replaces stdout and stderr."""

    def __init__(self) -> None:
        self._end, self._console_end = pty.openpty()
        self._kept = [os.dup(OUT), os.dup(ERR)]
        for fd in (OUT, ERR):
            os.dup2(self._console_end, fd)

    async def shows(self, expected: bytes) -> bool:
        """Return whether this output comes next, in one piece or several."""
        read = b""
        while len(read) < len(expected):
            read += await asyncio.to_thread(os.read, self._end, 1 << 16)
        return read == expected

    def close(self) -> None:
        for kept, fd in zip(self._kept, (OUT, ERR), strict=True):
            os.dup2(kept, fd)
            os.close(kept)
        os.close(self._end)
        os.close(self._console_end)


@pytest.fixture
def open_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    return lambda: closing(Terminal())


async def test_the_next_writer_overwrites_the_live_line(open_terminal, monkeypatch):
    with open_terminal() as terminal:
        await writes_over(terminal, monkeypatch)


async def writes_over(terminal, monkeypatch):
    monkeypatch.setattr(live_line, "_is_in_foreground", lambda: True)
    console = Console(LineFormat("node-agent"), asyncio.get_running_loop())
    assert console.can_redraw
    line = LiveLine(SimpleNamespace(console=console))
    line.show(Wait(reason="waiting"))
    drawn = b"node-agent: waiting"
    erased = b"\r" + b" " * (len(drawn) + 2) + b"\r"
    assert await terminal.shows(drawn)
    console.write(OUT, b"10%", "worker")
    assert await terminal.shows(erased + b"10%")
    line.show(Wait(reason="waiting"))
    assert await terminal.shows(b"\r\n" + drawn), "an unfinished line stays as it is"
    line.show(Wait(reason="done"))
    assert await terminal.shows(erased + b"node-agent: done")
    line.clear()
    line.clear()
    console.write(OUT, b"20%\n", "worker")
    await asyncio.to_thread(console.close)
    assert await terminal.shows(b"\r" + b" " * len("node-agent: done  ") + b"\r20%\r\n")


@pytest.mark.parametrize(
    ("form", "environment"),
    [
        (LineFormat("node-agent", is_json=True), {}),
        (LineFormat("node-agent", lowest=Level.WARNING.number), {}),
        (LineFormat("node-agent"), {"TERM": "dumb"}),
    ],
    ids=["json", "hidden-by-LOGLEVEL", "dumb-terminal"],
)
async def test_a_live_line_needs_a_capable_terminal(open_terminal, monkeypatch, form, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with open_terminal():
        assert not Console(form, asyncio.get_running_loop()).can_redraw
