"""The user's own check of a node: what its end means, what is kept of its output, and that it ends with its agent."""

import asyncio
import shlex
from pathlib import Path

import pytest

from node_agent.features.checks import NodeChecks, words
from node_agent.features.checks.pre_join import EVIDENCE_BYTES, PreJoinCheck, evidence
from node_agent.kernel.core.effects import WAITING, Level
from node_agent.kernel.failures.diagnose import exit_status
from tests.support.message_search import has_message
from tests.support.process_info import ended, until


class Checked:
    """One check, with the agent's lines."""

    def __init__(self, command: str, limit_s: float = 30.0) -> None:
        self.said: list[str] = []
        options = NodeChecks(pre_join_check=command, pre_join_check_timeout=limit_s)
        self.check = PreJoinCheck(options, "a", {"PATH": "/usr/bin:/bin"}, self._log)

    async def run(self, *, after_failure: bool = False) -> str:
        async with asyncio.timeout(30):
            return await self.check.unfit(after_failure)

    def _log(self, text: str, level: Level, event: str) -> None:
        if event != WAITING:  # it logs a wait only on a busy machine
            self.said.append(text)


async def test_a_fit_node() -> None:
    checked = Checked("echo fine; exit 0")
    assert (await checked.run(), checked.said) == ("", [])


async def test_an_unfit_node_with_the_evidence() -> None:
    unfit = await Checked("echo one; echo >&2 two\tthree; exit 71").run()
    assert unfit == words.rejected("a", "--pre-join-check 'echo one; echo >&2 two three; exit 71'", "one | two three")


@pytest.mark.parametrize(("command", "exit_code"), [("exit 3", 3), ("kill -9 $$", -9), ("no-such-program", 127)])
async def test_a_broken_check_does_not_make_a_node_unfit(command: str, exit_code: int) -> None:
    checked = Checked(command)
    assert await checked.run() == ""
    (line,) = checked.said
    name, cause = f"--pre-join-check {shlex.quote(command)}", exit_status(exit_code).cause
    wrote = {} if exit_code == 127 else {"evidence": ""}
    assert has_message(line, words.broken, name=name, cause=cause, code=71, **wrote)


async def test_a_check_that_hangs_is_a_sign_of_a_broken_node_and_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    unfit = await Checked(f"sleep 600 & echo $! $$ >{pids}; echo looking; wait", limit_s=0.5).run()
    assert has_message(unfit, words.too_slow, node_id="a", limit_s=0.5, evidence="looking")
    for pid in map(int, pids.read_text().split()):
        await ended(pid)


async def test_a_running_check_ends_with_its_agent(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    checked = Checked(f"echo $$ >{pids}.new; mv {pids}.new {pids}; sleep 600")
    running = asyncio.create_task(checked.run())
    await until(pids.exists)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await ended(int(pids.read_text()))
    assert running.cancelled()


async def test_a_check_reports_its_name_and_purpose() -> None:
    command = 'echo "$NODE_AGENT_CHECK on $NODE_AGENT_NODE_ID"; exit 71'
    assert (await Checked(command).run()).endswith("join on a")
    assert (await Checked(command).run(after_failure=True)).endswith("after_failure on a")


async def test_a_check_that_writes_without_end_is_bounded() -> None:
    unfit = await Checked("yes 0123456789 | head -c 3000000; echo; echo last; exit 71").run()
    assert unfit.endswith("| last")
    assert len(unfit) < EVIDENCE_BYTES + 200


def test_evidence_is_one_line_of_the_end() -> None:
    assert evidence("") == evidence("\n \n") == ""
    assert evidence("\n".join(map(str, range(20)))) == "12 | 13 | 14 | 15 | 16 | 17 | 18 | 19"
