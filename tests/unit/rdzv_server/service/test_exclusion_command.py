"""The operator's command for each node that the server excludes."""

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from rdzv_server.core import journals
from rdzv_server.core.effects import Effect, NotifyReplayed, Record
from rdzv_server.core.events import NodeCordoned, NodeUncordoned
from rdzv_server.service.exclusion_command import ExclusionCommand
from rdzv_server.words import nodes as node_words
from rdzv_server.words import operations
from rdzv_server.words import service as words
from tests.support.process_info import until


def exclusion(node: str = "n7", reason: str = "worn out", **more: object) -> Record:
    given = {"reason": reason, "by": "rdzv-server", "node_id": node, "for_s": 600.0}
    return Record(*journals.NODES, 1.0, NodeCordoned(**(given | more)))


def observe(made: ExclusionCommand, effects: Iterable[Effect]) -> None:
    for effect in effects:
        made.observe(effect)


async def told(
    command: str, *records: Record, says: str, caplog: pytest.LogCaptureFixture, limit_s: float = 30.0
) -> str:
    """Return the last line of the log."""
    caplog.set_level(logging.INFO)
    made = ExclusionCommand(command, limit_s)
    task = asyncio.create_task(made.run())
    observe(made, records)
    await until(lambda: says in caplog.text)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return caplog.messages[-1]


async def test_on_exclude_gets_the_node_the_reason_and_the_duration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = tmp_path / "seen"
    command = f'echo "$RDZV_NODE|$RDZV_REASON|$RDZV_SECONDS" >>{seen}'
    records = (exclusion("a"), exclusion("b"))
    assert await told(command, *records, says=words.on_exclude_done("b"), caplog=caplog) == words.on_exclude_done("b")
    assert seen.read_text() == "a|worn out|600\nb|worn out|600\n"


FULL = "node n7 is unfit: --check disk rejected it: disk: 0.20 GiB free in /tmp (DiskFull, temporary)"
SAMPLES = {  # sample, reason: the arguments of the scheduler's program
    "slurm": ("slurm", FULL, ["update", "NodeName=n7", "State=DRAIN",
                              f"Reason=rdzv-server: DiskFull (temporary): {FULL}"]),
    "slurm, without a check": ("slurm", "lost", ["update", "NodeName=n7", "State=DRAIN", "Reason=rdzv-server: lost"]),
    "kubernetes": ("kubernetes", FULL, [
        "annotate", "--overwrite", "node", "--", "n7", f"rdzv-server/excluded={FULL}",
        "rdzv-server/condition=DiskFull", "rdzv-server/class=temporary", "cordon", "--", "n7"]),
}  # fmt: skip


@pytest.mark.parametrize(("sample", "reason", "arguments"), SAMPLES.values(), ids=SAMPLES)
async def test_the_samples_hand_on_what_a_check_has_found(
    sample: str, reason: str, arguments: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    notes = f'printf "%s\\n" "$@" >>{tmp_path}/seen'
    for name, does in {"kubectl": notes, "scontrol": notes, "sinfo": "echo n7"}.items():
        (program := tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = str(Path(__file__).parents[4] / "deploy" / "on-exclude" / sample)
    await told(command, exclusion("n7", reason), says=words.on_exclude_done("n7"), caplog=caplog)
    assert (tmp_path / "seen").read_text().splitlines() == arguments


async def test_text_from_an_agent_is_never_part_of_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen, harm = tmp_path / "seen", tmp_path / "harm"
    bad = f"$(touch {harm}); `touch {harm}`\x00\n"
    await told(
        f'echo "$RDZV_REASON" >{seen}',
        exclusion("x; touch y", bad),
        says=words.on_exclude_done("x; touch y"),
        caplog=caplog,
    )
    assert seen.read_text() == f"$(touch {harm}); `touch {harm}`  \n"
    assert not harm.exists()


async def test_it_does_not_run_for_a_finding_that_turns_out_to_be_shared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor for a node that an operator uncordons before. Other exclusions do not wait."""
    caplog.set_level(logging.INFO)
    made = ExclusionCommand(f'echo "$RDZV_NODE" >>{tmp_path}/seen', together_s=1.0)
    task = asyncio.create_task(made.run())
    observe(made, [exclusion(node, condition="GpuMissing") for node in "abc"])
    observe(made, [exclusion("lost")])
    for node, reason in (("a", node_words.SHARED), ("b", operations.TIME_OVER)):
        observe(made, [Record(*journals.NODES, 1.5, NodeUncordoned(reason, node_id=node))])
    await until(lambda: words.on_exclude_done("c") in caplog.text)
    assert (tmp_path / "seen").read_text().split() == ["lost", "b", "c"]
    assert words.on_exclude_not_needed("a", node_words.SHARED) in caplog.messages
    observe(made, [exclusion("d", condition="GpuMissing")])
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert caplog.messages[-1] == words.on_exclude_left("d")


async def test_after_a_crash_it_runs_for_exclusions_whose_wait_is_not_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command may have run for the others."""
    caplog.set_level(logging.INFO)
    made = ExclusionCommand(f'echo "$RDZV_NODE $RDZV_CONDITION" >>{tmp_path}/seen', together_s=10.0)
    task = asyncio.create_task(made.run())
    now, found = time.time(), {"condition": "DiskFull", "reason": FULL}
    monkeypatch.setattr(time, "time", lambda: now)  # a busy machine does not end a wait
    facts = [
        exclusion("before", wall_at=now - 11.0, **found).fact, exclusion("at once", wall_at=now).fact,
        exclusion("shared", wall_at=now - 9.0, **found).fact, exclusion("alone", wall_at=now - 9.0, **found).fact,
        exclusion("b", by="admin", wall_at=now - 9.0, **found).fact,
        NodeUncordoned(node_words.SHARED, node_id="shared"),
    ]  # fmt: skip
    observe(made, [NotifyReplayed(fact) for fact in facts])
    observe(made, [exclusion("new")])
    await until(lambda: words.on_exclude_done("alone") in caplog.text)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (tmp_path / "seen").read_text().splitlines() == ["new ", "alone DiskFull"]
    assert not any(words.on_exclude_left(node) in caplog.messages for node in ("before", "at once", "b"))


async def test_a_failing_on_exclude_command_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    failed = words.on_exclude_failed("n7", words.fails_with(3), "no such node")
    assert await told("echo no such node; exit 3", exclusion(), says=failed, caplog=caplog) == failed
    assert caplog.records[-1].levelno == logging.ERROR


async def test_an_on_exclude_command_that_takes_too_long_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    killed = words.on_exclude_failed("n7", words.was_killed_after(0.3), "looking")
    assert await told("echo looking; sleep 600", exclusion(), says=killed, caplog=caplog, limit_s=0.3) == killed


async def test_an_operators_cordon_and_another_shards_exclusion_are_not_its_business(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = (exclusion("a", by="admin"), exclusion("b", wall_until=2e9), exclusion("c"))
    await told("true", *records, says=words.on_exclude_done("c"), caplog=caplog)
    assert caplog.messages == [words.on_exclude_done("c")]
