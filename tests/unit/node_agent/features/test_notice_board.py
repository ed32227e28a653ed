"""Notices to workers: for which workers the agent waits."""

from pathlib import Path
from typing import Any, cast

import pytest
from rdzv_protocol.queries import Notice, Noticed

from node_agent.features.notices.notice_board import NoticeBoard
from node_agent.kernel.processes.temp_dir import TempDir

NOTICE = Notice(number=1, round=1, remaining_s=500.0, source="node_drained", node_id="a", reason="drained")


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = lambda name: str(path / name)


def listens(board: NoticeBoard) -> None:
    """Make the file with which a worker shows that it listens."""
    Path(board.environment(0)["NODE_AGENT_NOTICE_ACK"]).touch()


@pytest.mark.parametrize("signal_name", [None, "SIGUSR2"])
async def test_a_worker_that_has_ended_is_waited_for_no_longer(tmp_path: Path, signal_name: str | None) -> None:
    """For example, a worker saves and exits 0 instead of acknowledging the notice."""
    board = NoticeBoard(cast(TempDir, Folder(tmp_path)), 1, 1, signal_name)
    listens(board)
    told: list[Any] = []
    assert await board.give(NOTICE, dict, told.append) == Noticed(listening=1, acknowledged=1)
    assert not told and not await board.is_acknowledged()
