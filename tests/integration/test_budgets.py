"""Budgets of restarts with real processes: waits between restarts, rules about failures, and runs without progress."""

import re
import signal
from pathlib import Path

import pytest
from rdzv_protocol.actions import DRAIN, RESTART
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from node_agent.features.rules import words as rules
from node_agent.features.rules.feature import CPU_S, MATCHED_WITHIN_S
from rdzv_server.words import completion, failures
from tests.integration.test_actions import act
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.programs import start_agent
from tests.support.worker_hub import restart_count

FATAL = ("--fatal-rule", r"bad record \d+")


async def test_the_second_restart_in_a_row_waits_and_reports_it(cluster: Cluster) -> None:
    flags = (
        "--nnodes",
        "2",
        *PATIENT,
        "--max-restarts",
        "9",
        "--restart-backoff",
        "500",
        "--restart-backoff-max",
        "500",
    )
    first = await cluster.nodes("ab", *flags, nproc=1)
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    second[1].order_exit(3)
    for name in "ab":
        await cluster.agents[name].line(re.escape(completion.awaits_backoff(1)))
    run = await cluster.server.run()
    assert run["phase"] == "restarting" and 0 < run["deadline_s"] <= 500
    assert (await act(cluster.server, RESTART, run_id=run["run_id"]))[0] == 200
    third = await cluster.hub.group(2)
    assert restart_count(third) == 2
    await cluster.finish(third)


async def test_a_run_that_gets_nowhere_ends_with_an_exit_code_of_its_own(cluster: Cluster) -> None:
    """The steps of the last seconds count too: they come with the report of the failure."""
    flags = ("--nnodes", "2", *PATIENT, "--max-restarts", "99", "--max-restarts-without-progress", "1")
    workers = await cluster.nodes("ab", *flags, nproc=1)
    for step in (7, 8):
        await workers[0].tell(f"progress {step}")
        workers[0].order_exit(3)
        workers = await cluster.hub.group(2)
    await workers[0].tell("progress 8")
    workers[0].order_exit(3)
    for name in "ab":
        agent = cluster.agents.pop(name)
        assert await agent.exit_code() == ExitCode.NO_PROGRESS
        await agent.line(failures.no_progress(2, highest_step=8, checkpoint_step=None))


async def test_rules_by_what_workers_wrote_make_a_restart_free_or_end_the_run(cluster: Cluster) -> None:
    rules = ("--retry-rule", "Stale file handle", *FATAL)
    workers = await cluster.nodes("ab", "--nnodes", "2", *PATIENT, *rules, nproc=1)
    for line in ("OSError: [Errno 116] Stale file handle", "RuntimeError: bad record 7"):
        await workers[1].tell(f"complain {line}")
        workers[1].order_exit(3)
        if "Stale" in line:
            workers = await cluster.hub.group(2)
            assert restart_count(workers) == 0 and await cluster.restarts() == {"retried": 1}
    for name in "ab":
        agent = cluster.agents.pop(name)
        assert await agent.exit_code() == ExitCode.FAILED
        await agent.line(pattern(failures.fatal_rule, rule=r"bad record \d+"))


@pytest.mark.parametrize("event", ["another node's failure", "a drain", "a signal"])
async def test_a_fatal_failure_counts_even_with_other_events_in_the_same_instant(cluster: Cluster, event: str) -> None:
    flags = ("--nnodes", "1:2", "--run-id", "r", *PATIENT, "--max-restarts", "9")
    first, second = await cluster.node("a", *flags, nproc=1), await cluster.node("b", *flags, *FATAL, nproc=1)
    workers = {worker.agent_pid: worker for worker in await cluster.hub.group(2)}
    await workers[second.pid].tell("complain bad record 7")
    workers[second.pid].order_exit(3)
    await second.line("worker rank . .* failed: exit code 3")
    match event:
        case "another node's failure":
            workers[first.pid].kill()
        case "a drain":
            await act(cluster.server, DRAIN, node_id="b")
        case "a signal":
            second.signal(signal.SIGTERM)
    assert await first.exit_code() == ExitCode.FAILED
    await first.line(pattern(failures.fatal_rule, rule=r"bad record \d+"))
    assert await second.exit_code() in (ExitCode.FAILED, ExitCode.START_AGAIN)


async def test_a_node_that_is_killed_again_and_again_ends_the_run(cluster: Cluster) -> None:
    flags = ("--run-id", "r", *PATIENT, "--max-restarts-without-progress", "1")
    for _ in range(2):
        agent = await cluster.node("a", *flags, nproc=1)
        await cluster.hub.group(1)
        agent.signal(signal.SIGKILL)
        await agent.exit_code()
    agent = await cluster.node("a", *flags, nproc=1)
    assert await agent.exit_code() == ExitCode.NO_PROGRESS
    await agent.line(pattern(failures.lost_without_steps, node_id="a", rounds=2, within_s=600))


async def test_a_pattern_that_never_finishes_does_not_delay_the_agent_or_its_leave(cluster: Cluster) -> None:
    flags = ("--nnodes", "1:2", "--run-id", "r", *PATIENT, "--fatal-rule", "(a+)+$")
    first, second = await cluster.node("a", *flags, nproc=1), await cluster.node("b", *flags, nproc=1)
    workers = {worker.agent_pid: worker for worker in await cluster.hub.group(2)}
    await workers[second.pid].tell(f"complain {'a' * 60}!")
    workers[second.pid].order_exit(3)
    await second.line("worker rank . .* failed: exit code 3")
    second.signal(signal.SIGTERM)
    await second.line(pattern(words.leaving.leaving, why="SIGTERM"))
    limits_s = (CPU_S, MATCHED_WITHIN_S)
    await second.line("|".join(re.escape(rules.unmatched(rules.too_slow(limit_s))) for limit_s in limits_s))
    assert await second.exit_code() == ExitCode.START_AGAIN
    await first.line(pattern(failures.no_restarts_left, most=0, within_s=None))  # the failure was reported anyway


async def test_a_script_that_cannot_start_is_reported_once_and_can_end_the_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import nowhere_to_be_found")
    for flags, restarts in (
        ((), "Restarts: 1"),
        (("--fail-when-hopeless",), f"Ended: {failures.restart_useless(failures.FAILED_AT_START)}"),
    ):
        agent = await start_agent("--standalone", "--max-restarts", "1", *flags, script=script)
        assert await agent.exit_code() == ExitCode.FAILED
        await agent.line(f"what to do: .*; {failures.restart_useless(failures.FAILED_AT_START)}")
        await agent.line(restarts)
