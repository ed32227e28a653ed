"""Preemption: what an agent looks for before it joins."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from node_agent.features import preemption
from node_agent.features.preemption import feature
from node_agent.kernel.feature import Kernel
from tests.support.process_info import until


class Agent:
    """Agent of which the feature only uses `leave` and the console."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.warned: list[Any] = []
        self.console = self
        self.log = self.warned.append

    def leave(self, signal_name: str, reason: str) -> None:
        self.left.append(signal_name)


def file(folder: Path, *, is_preempted: bool) -> preemption.Preemption:
    path = folder / "preempted"
    if is_preempted:
        path.touch()
    return preemption.Preemption(preemption_file=str(path))


def annotations(folder: Path, *, is_preempted: bool) -> preemption.Preemption:
    path = folder / "annotations"
    path.write_text(feature.DRAINED if is_preempted else "")
    return preemption.Preemption(preemption_annotations=str(path))


@pytest.mark.parametrize("is_preempted", [True, False])
@pytest.mark.parametrize("options", [file, annotations])
async def test_the_node_is_not_fit_to_join_before_the_first_look(
    options: Callable[..., preemption.Preemption], is_preempted: bool, tmp_path: Path
) -> None:
    assert await left_before_the_join(options(tmp_path, is_preempted=is_preempted)) == ["SIGTERM"] * is_preempted


@pytest.mark.parametrize("answer", [b"TRUE", b"FALSE", b""])
async def test_the_cloud_is_asked_before_the_join(answer: bytes) -> None:
    """An answer that is not the cloud's, or none at all, does not delay the join."""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer:
            writer.write(
                b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer
            )
        writer.close()

    async with await asyncio.start_server(answers, "127.0.0.1", 0) as service:
        base = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        left = await left_before_the_join(preemption.Preemption(preemption_poll=("gcp", base)))
    assert left == ["SIGTERM"] * (answer == b"TRUE")


async def test_a_cloud_that_does_not_answer_delays_the_join_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "FIRST_LOOK_S", 0.05)
    ended = asyncio.Event()

    async def answers_never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(answers_never, "127.0.0.1", 0) as service:
        base = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        assert await left_before_the_join(preemption.Preemption(preemption_poll=("gcp", base)), within_s=None) == []
        ended.set()


async def test_a_file_that_does_not_answer_is_logged_once_and_its_preemption_is_seen_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a writer waits as a disk that hangs does."""
    monkeypatch.setattr(feature, "SILENT_S", 0.01)
    pipe, agent = tmp_path / "annotations", Agent()
    os.mkfifo(pipe)
    watch = feature.Preemption(cast(Kernel, agent), preemption.Preemption(preemption_annotations=str(pipe)))
    watch.began()
    await until(lambda: agent.warned)
    await asyncio.to_thread(pipe.write_text, feature.DRAINED)
    await until(lambda: agent.left)
    assert agent.warned == [feature.words.file_silent(str(pipe), 0.01)]
    await watch.close()


async def test_a_file_that_answers_each_time_is_not_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []

    async def at_once(look: Callable[[], bool]) -> bool:
        looks.append(look())
        return looks[-1]

    monkeypatch.setattr(feature, "in_thread", at_once)
    for name in ("SILENT_S", "CHECK_INTERVAL_S"):
        monkeypatch.setattr(feature, name, 0.0)
    agent = Agent()
    watch = feature.Preemption(cast(Kernel, agent), file(tmp_path, is_preempted=False))
    watch.began()
    await until(lambda: len(looks) >= 5)
    assert agent.warned == agent.left == []
    await watch.close()


async def left_before_the_join(options: preemption.Preemption, within_s: float | None = 60.0) -> list[str]:
    """Return the signals because of which the agent leaves before it joins.

    `within_s`: how long the join waits for the first look at most, None for the usual time.
    """
    agent = Agent()
    watch = feature.Preemption(cast(Kernel, agent), options)
    watch.began()
    with pytest.MonkeyPatch.context() as patch:
        if within_s:
            patch.setattr(feature, "FIRST_LOOK_S", within_s)
        assert await watch.unfit(after_failure=False) == ""
    await watch.close()
    return agent.left
