"""What the watch sees of a node's workers in /proc."""

import asyncio
import os
import signal

import pytest

from node_agent.features.hangs.hang_watch import threads_asleep
from tests.support import leaderless
from tests.support.process_info import until


@pytest.mark.parametrize("how", ["", "uninterruptibly"])
async def test_if_a_main_thread_has_ended_another_thread_that_sleeps_uninterruptibly_is_seen(how: str) -> None:
    process = await asyncio.create_subprocess_exec(*leaderless.COMMAND, how, start_new_session=True)
    try:
        await until(lambda: leaderless.is_leaderless(process.pid))
        if how:
            await until(lambda: len(threads_asleep(process.pid)) == 1)
        assert process.pid not in threads_asleep(process.pid)
        assert bool(threads_asleep(process.pid)) is bool(how)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert threads_asleep(process.pid) == []
