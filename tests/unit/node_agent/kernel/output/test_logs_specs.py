"""`--logs-specs`: torch's class, running in a separate process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from node_agent import words
from node_agent.kernel.core.log_options import NO_FILES, LogOptions, Std
from node_agent.kernel.output.logs_specs import LogsPlugin
from node_agent.kernel.output.routing import PluginFailed, Route, Routing, WorkerRoutes, narrowed
from tests.support.launchers import warm_python
from tests.support.message_search import pattern
from tests.unit.node_agent.logs_plugin import install
from tests.unit.node_agent.story import an_assignment

pytestmark = pytest.mark.torch

PATIENCE_S = 60.0
"""Seconds for an import of torch on a busy machine."""
TORCH = "torch.distributed.elastic.multiprocessing"
"""Modules that the plug-ins import. Their processes are forks of one that has imported them."""


Start = Callable[..., LogsPlugin]


@pytest.fixture
async def broken() -> asyncio.Queue[str]:
    """Messages of plug-ins that cannot work."""
    return asyncio.Queue()


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: asyncio.Queue[str]) -> AsyncIterator[Start]:
    monkeypatch.syspath_prepend(install(tmp_path / "site"))
    warm = warm_python(TORCH, tmp_path, {})
    monkeypatch.setattr(sys, "executable", warm["PYTHON_EXEC"])
    plugins: list[LogsPlugin] = []
    before = len(os.listdir("/proc/self/fd"))

    def start_plugin(name: str, **flags: Any) -> LogsPlugin:
        options = LogOptions(**{"log_dir": str(tmp_path / "logs"), **flags}, plugin=name)
        plugins.append(LogsPlugin(options, os.environ | warm, broken.put_nowait))
        return plugins[-1]

    yield start_plugin
    for plugin in plugins:
        await plugin.close()
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) == before


async def reified(plugin: LogsPlugin, ranks: int = 2) -> Routing:
    return await asyncio.wait_for(
        plugin.reify([{"RANK": str(rank), "HOME": "/home/\udcff"} for rank in range(ranks)]), PATIENCE_S
    )


async def test_the_plug_in_decides_where_output_goes_and_sets_the_workers_variables(
    start: Start, tmp_path: Path
) -> None:
    folder = f"{tmp_path}/logs/by-rank"
    plugin = start("one-folder")
    logs = await reified(plugin)
    assert [worker.stdout for worker in logs.workers] == [
        Route(f"{folder}/0.log", shown=True, prefixed=True),
        Route(f"{folder}/1.log", shown=False),
    ]
    assert [worker.stderr for worker in logs.workers] == [Route()] * 2
    assert logs.workers[1].environment == {
        "MY_LOG": f"{folder}/1.log", "TORCHELASTIC_ERROR_FILE": f"{folder}/1.log.error",
    }  # fmt: skip
    assert (logs.filtered_stdout, logs.filtered_stderr) == (f"{folder}/filtered.log", "")
    assert len((await reified(plugin, ranks=3)).workers) == 3, "it is asked again each round"


async def test_a_plug_in_gets_the_same_arguments_as_under_torch(start: Start) -> None:
    plugin = start("arguments", redirects=Std.ERR, tee={0: Std.OUT, 12: Std.ALL}, local_ranks=frozenset({2, 1}))
    with pytest.raises(PluginFailed) as failed:
        await reified(plugin)
    arguments = "<Std.ERR: 2> {0: <Std.OUT: 1>, 12: <Std.ALL: 3>} {1, 2}"
    assert str(failed.value) == words.output.plugin_failed("arguments", f"RuntimeError: {arguments}")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("broken", "NotADirectoryError: no such folder"),
        ("missing", "ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
async def test_a_plug_in_that_cannot_be_made_is_broken(
    start: Start, broken: asyncio.Queue[str], name: str, error: str
) -> None:
    plugin = start(name)
    assert await asyncio.wait_for(broken.get(), PATIENCE_S) == words.output.plugin_failed(name, error)
    with pytest.raises(PluginFailed):
        await reified(plugin)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("forgetful", words.output.wrong_local_ranks("stdouts", [0], [0, 1])),
        ("dying", words.output.plugin_ended("dying")),
    ],
)
async def test_a_plug_in_that_forgets_a_worker_or_ends_has_failed(start: Start, name: str, says: str) -> None:
    with pytest.raises(PluginFailed, match=pattern(says)):
        await reified(start(name))


async def test_a_round_that_is_given_up_does_not_confuse_the_next(start: Start) -> None:
    plugin = start("one-folder")
    await reified(plugin)
    given_up = asyncio.create_task(plugin.reify([{"RANK": "7"}]))
    await asyncio.sleep(0)
    given_up.cancel()
    assert len((await reified(plugin, ranks=3)).workers) == 3


async def test_an_agent_that_ends_before_the_plug_in_is_up_does_not_wait_for_it() -> None:
    plugin = LogsPlugin(LogOptions(plugin="one-folder"), dict(os.environ), pytest.fail)
    async with asyncio.timeout(1.0):
        await plugin.close()


async def test_torchs_own_default_without_files_shows_everything(
    start: Start, monkeypatch: Any, tmp_path: Path
) -> None:
    points = tmp_path / "site" / "one_folder_specs-1.0.dist-info" / "entry_points.txt"
    default = "default = torch.distributed.elastic.multiprocessing:DefaultLogsSpecs\n"
    points.write_text(points.read_text() + default)
    logs = await reified(start("default", log_dir=NO_FILES, tee=Std.ALL))
    assert [worker.stdout for worker in logs.workers] == [Route()] * 2
    assert [worker.environment for worker in logs.workers] == [{"TORCHELASTIC_ERROR_FILE": ""}] * 2


def test_the_filter_by_global_rank_narrows_what_a_plug_in_shows() -> None:
    assignment = an_assignment(first_rank=4, local_world_size=2)
    said = Routing([WorkerRoutes(Route("/a", True, True)), WorkerRoutes(Route("/b", True, True))])
    shown = narrowed(said, LogOptions(ranks=frozenset({5})), assignment.ranks)
    assert [worker.stdout.shown for worker in shown.workers] == [False, True]
    assert narrowed(said, LogOptions(), assignment.ranks) == said
