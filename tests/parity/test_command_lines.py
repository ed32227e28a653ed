"""Command lines under torchrun and under node-agent: each difference is in the reviewed table and in the documentation.

Both launchers are forks of processes that have imported them. Workers are shell scripts, so hundreds are cheap.
tests/integration/test_environment_parity.py tests what needs a real interpreter.
"""

import asyncio
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from node_agent.cli.arguments import FLAGS
from tests.parity.command_lines import GROUPS, SAMPLES, SWITCHES
from tests.parity.differences import DIFFERENCES, NOT_SHOWN, PAGE, page, unexplained
from tests.parity.observe import NODE_AGENT, TORCHRUN, Line, observe

COMPARED_WITH = "2.13."
PARALLEL = 4
IN_A_TEST = 12
TRIES = 10
"""Tries in which a line must show its difference once: the order of two streams depends on the system."""
PARTS = {
    f"{group} {start // IN_A_TEST + 1}": lines[start : start + IN_A_TEST]
    for group, lines in GROUPS.items()
    for start in range(0, len(lines), IN_A_TEST)
}


@pytest.mark.torch
@pytest.mark.skipif(not version("torch").startswith(COMPARED_WITH), reason=f"compared with torch {COMPARED_WITH}x")
@pytest.mark.parametrize("part", PARTS)
async def test_both_launchers_do_the_same(part: str) -> None:
    turns = asyncio.Semaphore(PARALLEL)

    async def compare(number: int, line: Line) -> str:
        wrong: list[str] = []
        for again in range(TRIES):
            async with turns:
                at = folder / f"{number}.{again}"
                theirs, ours = [await observe(line, launcher, at) for launcher in (TORCHRUN, NODE_AGENT)]
            wrong = list(unexplained(line, theirs, ours))
            if not wrong or not all(each.startswith(NOT_SHOWN) for each in wrong):
                break
        return "\n  ".join([str(line), *wrong]) if wrong else ""

    with TemporaryDirectory() as name:  # pytest's folders have names too long for the paths of sockets
        folder = Path(name)
        found = await asyncio.gather(*(compare(number, line) for number, line in enumerate(PARTS[part])))
    assert not any(found), "\n".join(filter(None, found))


def test_command_lines_are_unique() -> None:
    lines = [line for part in GROUPS.values() for line in part]
    assert len({*lines}) == len(lines) >= 300


def test_every_flag_of_torchrun_is_there() -> None:
    """All except `--logs-specs`, whose valid values are plug-ins, and `--use-env` of torch.distributed.launch."""
    torchruns = {argument.replace("_", "-") for argument, flag in FLAGS.items() if flag.torchruns}
    assert torchruns - {"logs-specs", "use-env"} == {*SAMPLES, *SWITCHES}


def test_every_difference_names_a_command_line_that_shows_it() -> None:
    lines = {line for part in GROUPS.values() for line in part}
    assert [each.what for each in DIFFERENCES if each.seen_with not in lines] == []


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "python -m tests.parity.differences writes it"
