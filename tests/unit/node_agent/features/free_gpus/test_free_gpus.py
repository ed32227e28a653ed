"""Workers that start when their GPUs are free: a real agent, real workers, and a stand-in of NVML."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.messages import JoinRequest, PollRequest

from node_agent.features import free_gpus
from node_agent.features.free_gpus import words
from node_agent.features.free_gpus.feature import FreeGpus
from node_agent.kernel.processes.process import own_children
from node_agent.kernel.workers import group
from tests.support.nvml import PlayedDriver
from tests.support.process_info import command_line, until
from tests.unit.node_agent.command_lines import plan
from tests.unit.node_agent.features.free_gpus.test_gpus_helper import MIB
from tests.unit.node_agent.rig import Rig, rig
from tests.unit.node_agent.story import start, stop


def waits(limit_s: float = 30.0) -> tuple[free_gpus.FreeGpus]:
    return (free_gpus.FreeGpus(gpu_free_timeout=limit_s, has_driver=True),)


def gpu_rig(driver: PlayedDriver, limit_s: float = 30.0, script: str = "exec sleep 60", **config: Any) -> Any:
    return rig(
        script, features=waits(limit_s), environment={"PATH": os.environ["PATH"], **driver.environment}, **config
    )


def one_worker(round_: int) -> Any:
    return start(round_, local_world_size=1, group_rank=0, first_rank=0)


def looks() -> list[int]:
    """Return the pids of running helpers."""
    return [pid for pid in own_children if "gpus_helper" in command_line(pid)]


async def begins(agent: Rig, round_: int) -> None:
    """Begin a round when the helper has looked at the GPUs. Its workers may have to wait."""
    await agent.server.hears(JoinRequest, round_)
    look = agent.feature(FreeGpus)._look
    await until(lambda: look is None or look.holders or look.done.is_set())
    await agent.server.answers(one_worker(round_))


async def has_workers(agent: Rig, round_: int) -> list[int]:
    """Return the pids of the round's workers once they run."""
    await until(lambda: agent.pids and agent.agent.started.assignment.round == round_)
    return agent.pids


async def restarts(agent: Rig, driver: PlayedDriver, round_: int) -> int:
    """End the round's worker, whose memory stays in use, and begin the next round. Return its pid."""
    (pid,) = await has_workers(agent, round_)
    driver.says(f"holds 0 {pid} {512 * MIB}")
    await agent.server.answers(stop(round_))
    await begins(agent, round_ + 1)
    return pid


async def test_new_workers_wait_until_the_dead_ones_memory_is_free(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    async with gpu_rig(driver) as agent:
        await begins(agent, 1)
        pid = await restarts(agent, driver, 1)
        polls = len(agent.server.of(PollRequest))
        await until(lambda: words.waiting([words.holder(pid, "", 512, 0)], 30) in agent.console.lines)
        assert not agent.pids
        assert len(agent.server.of(PollRequest)) >= polls, "the server hears of the agent meanwhile"
        driver.says()
        await has_workers(agent, 2)
        assert not [line for line in agent.console.lines if "anyway" in line]


async def test_a_worker_that_survives_sigkill_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "signal_group", lambda pid, signum: None)
    monkeypatch.setattr(group, "KILL_TIMEOUT_S", 0.1)
    driver = PlayedDriver(tmp_path)
    async with gpu_rig(driver, script="trap '' TERM; exec sleep 60", shutdown_timeout_s=0.1) as agent:
        await begins(agent, 1)
        (pid,) = await has_workers(agent, 1)
        driver.says(f"lives 0 {pid} {512 * MIB}")
        await agent.server.answers(stop(1))
        await begins(agent, 2)
        named = words.waiting([words.holder(pid, "sleep 60", 512, 0)], 30)
        await until(lambda: named in agent.console.lines)
        os.kill(pid, signal.SIGKILL)
        monkeypatch.undo()
        assert await has_workers(agent, 2) != [pid]


async def test_free_gpus_are_not_mentioned(tmp_path: Path) -> None:
    async with gpu_rig(PlayedDriver(tmp_path)) as agent:
        for round_ in (1, 2):
            await begins(agent, round_)
            await has_workers(agent, round_)
            await agent.server.answers(stop(round_))
        assert not [line for line in agent.console.lines if "GPU" in line]


async def test_after_the_limit_workers_start_anyway_and_the_process_is_not_waited_for_again(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    async with gpu_rig(driver, limit_s=0.3) as agent:
        await begins(agent, 1)
        pid = await restarts(agent, driver, 1)
        second = await has_workers(agent, 2)
        warning = words.not_free([words.holder(pid, "", 512, 0)], 0.3)
        assert agent.console.lines.count(warning) == 1
        await agent.server.answers(stop(2))
        await begins(agent, 3)
        assert await has_workers(agent, 3) != second
        assert [line for line in agent.console.lines if "anyway" in line] == [warning]


async def test_a_driver_that_hangs_does_not_hang_the_agent(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    driver.says("hangs")
    async with gpu_rig(driver, limit_s=0.3) as agent:
        await until(looks)
        (hung,) = looks()
        await agent.server.answers(one_worker(1))
        await has_workers(agent, 1)
        assert words.driver_hangs(0.3) in agent.console.lines
        await until(lambda: not command_line(hung))


async def test_an_unusable_driver_is_mentioned_once(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    driver.says("fails 9")
    async with gpu_rig(driver) as agent:
        for round_ in (1, 2, 3):
            await begins(agent, round_)
            await has_workers(agent, round_)
            await agent.server.answers(stop(round_))
        assert agent.console.lines.count(words.cannot_ask("Driver Not Loaded")) == 1


async def test_a_round_that_ends_while_its_workers_wait_starts_none(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    async with gpu_rig(driver) as agent:
        await begins(agent, 1)
        await restarts(agent, driver, 1)
        await agent.server.answers(stop(2))
        await begins(agent, 3)
        assert not agent.pids
        driver.says()
        await has_workers(agent, 3)


async def test_the_helper_of_a_restart_starts_beside_the_workers_and_is_replaced_if_it_dies(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    async with gpu_rig(driver) as agent:
        await begins(agent, 1)
        await has_workers(agent, 1)
        await until(looks)
        (idle,) = looks()
        os.kill(idle, signal.SIGKILL)
        await until(lambda: agent.feature(FreeGpus)._look.done.is_set())
        pid = await restarts(agent, driver, 1)
        await until(lambda: words.waiting([words.holder(pid, "", 512, 0)], 30) in agent.console.lines)
        driver.says()
        await has_workers(agent, 2)


async def test_an_agent_that_ends_also_ends_its_helpers(tmp_path: Path) -> None:
    driver = PlayedDriver(tmp_path)
    driver.says("hangs")
    async with gpu_rig(driver) as agent:
        await until(looks)
        (pid,) = looks()
        await agent.close()
    await until(lambda: not command_line(pid))


@pytest.mark.parametrize(
    ("driver", "flags", "is_on"),
    [("/dev/null", (), True), ("/dev/null", ("--gpu-free-timeout", "0"), False), ("/dev/no-driver", (), False)],
    ids=["a GPU", "turned off", "no GPU"],
)
def test_only_machines_with_a_driver_wait(
    monkeypatch: pytest.MonkeyPatch, driver: str, flags: tuple[str, ...], is_on: bool
) -> None:
    monkeypatch.setattr(free_gpus, "DRIVER", driver)
    options = plan("--nproc", "1", *flags, str(Path(__file__))).config.options(free_gpus.FreeGpus)
    assert options.is_on == is_on
    assert options.descriptors(8) == (free_gpus.FILES if is_on else 0)
