"""Telling a scheduler about the run: what each channel sends, and what the agent does if it does not arrive."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import PollRequest, Reply, RunSummary, Wait

from node_agent.features import tell_scheduler
from node_agent.features.tell_scheduler import channels, feature, words
from node_agent.features.tell_scheduler.channels import (
    Annotations,
    Files,
    NotInside,
    SlurmComment,
    TrainerStatus,
    Untold,
)
from node_agent.features.tell_scheduler.feature import TellScheduler
from node_agent.words import connection
from tests.support.kubernetes_api import TRAINER_PATH, Api, kubernetes
from tests.support.message_search import has_message

LONG_S = 60.0
JOB = "/apis/batch/v1/namespaces/ml/jobs/train"
RUNS = RunSummary(
    phase="running", health="slow", sentence="node b is slow", round=2, nodes=3, restarts=2, charged_restarts=1,
    max_restarts=3, step=1200, checkpoint_step=1000,
)  # fmt: skip
FORMS = RunSummary(phase="forming", sentence="waiting for 1 node", max_restarts=3)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with kubernetes(tmp_path) as api:
        api.objects[JOB] = {"metadata": {"name": "train", "annotations": {"mine": "yes"}}, "spec": {"parallelism": 4}}
        yield api


def annotations(api: Api, name: str = "train") -> Annotations:
    files = Files(api.ca, api.token_file)
    return Annotations(channels.Api("127.0.0.1", api.port, files), "job", name, "ml")


async def untold(channel: channels.Channel) -> Untold:
    with pytest.raises(Untold) as error:
        async with asyncio.timeout(LONG_S):
            await channel.send(RUNS)
    return error.value


async def test_a_job_gets_annotations_beside_its_own_and_nothing_else_changes(api: Api) -> None:
    await annotations(api).send(RUNS)
    assert api.objects[JOB] == {
        "metadata": {
            "name": "train",
            "annotations": {
                "mine": "yes",
                "rdzv-server/phase": "running",
                "rdzv-server/health": "slow",
                "rdzv-server/progress": words.progress(1200, 1000),
                "rdzv-server/restarts": words.restarts_of(2, 1, 3),
                "rdzv-server/reason": "node b is slow",
            },
        },
        "spec": {"parallelism": 4},
    }


async def test_the_progress_of_an_earlier_run_is_removed(api: Api) -> None:
    await annotations(api).send(RUNS)
    await annotations(api).send(FORMS)
    assert "rdzv-server/progress" not in api.objects[JOB]["metadata"]["annotations"]


async def test_tokens_that_are_replaced_are_read_again(api: Api) -> None:
    channel = annotations(api)
    await channel.send(RUNS)
    api.rotate("second")
    await channel.send(FORMS)
    assert api.objects[JOB]["metadata"]["annotations"]["rdzv-server/phase"] == "forming"


@pytest.mark.parametrize(("status", "headers", "again_s"), [
    (401, {}, None), (403, {}, None), (409, {}, None), (429, {"Retry-After": "7"}, 7.0),
    (503, {"Retry-After": "1"}, 1.0), (500, {}, None), (429, {"Retry-After": "soon"}, None),
    (302, {"Location": "https://192.0.2.1/"}, None),
])  # fmt: skip
async def test_a_refusal_is_an_error_with_the_apis_own_words(
    api: Api, status: int, headers: dict[str, str], again_s: float | None
) -> None:
    api.refusals = [(status, headers)]
    error = await untold(annotations(api))
    assert (str(error), error.again_s) == (words.wrong_status(status, "refused by the test"), again_s)
    assert api.requests == 1, "nothing is sent elsewhere"


async def test_an_object_that_does_not_exist_is_an_error(api: Api) -> None:
    assert "not found" in str(await untold(annotations(api, name="gone")))


async def test_another_certificate_a_missing_token_and_a_server_that_is_gone_are_errors(
    api: Api, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    async with kubernetes(tmp_path / "other") as other:
        impostor = Annotations(
            channels.Api("127.0.0.1", api.port, Files(other.ca, api.token_file)), "job", "train", "ml"
        )
        assert "CERTIFICATE_VERIFY_FAILED" in str(await untold(impostor))
        gone = annotations(other)
    assert api.requests == 0
    await untold(gone)
    os.unlink(api.token_file)
    assert "No such file" in str(await untold(annotations(api)))


async def test_a_token_file_with_several_lines_is_an_error_and_nothing_is_sent(api: Api) -> None:
    api.rotate("token\r\nX-Injected: yes")
    assert str(await untold(annotations(api))) == connection.unsendable("Authorization")
    assert api.requests == 0


async def test_a_train_job_gets_metrics_as_trainer_wants_them(api: Api) -> None:
    await TrainerStatus(f"{api.base}{TRAINER_PATH}", Files(api.ca, api.token_file)).send(RUNS)
    (status,) = api.statuses
    assert {each["name"]: each["value"] for each in status["metrics"]} == {
        "phase": "running", "health": "slow", "nodes": "3", "step": "1200", "checkpointStep": "1000", "restarts": "2",
        "chargedRestarts": "1",
    }  # fmt: skip


async def test_a_slurm_job_gets_a_comment_in_one_line(tmp_path: Path) -> None:
    environment = scontrol(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/told')
    await SlurmComment("17", environment).send(RUNS)
    assert (tmp_path / "told").read_text().splitlines() == [
        "update", "JobId=17", f"Comment={channels.in_short(RUNS)}"
    ]  # fmt: skip
    assert all(part in channels.in_short(RUNS) for part in ("running", "1200", "1000", "slow"))


@pytest.mark.parametrize(("script", "why"), [
    ("echo 'Invalid user id' >&2; exit 1", words.command_failed(1, "Invalid user id")),
    ("exec sleep 100", words.command_failed(None, "")),
])  # fmt: skip
async def test_scontrol_that_fails_or_hangs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(channels, "COMMAND_S", 0.2)
    assert str(await untold(SlurmComment("17", scontrol(tmp_path, script)))) == why


async def test_a_node_without_scontrol_is_an_error(tmp_path: Path) -> None:
    assert "scontrol" in str(await untold(SlurmComment("17", {"PATH": str(tmp_path)})))


def scontrol(folder: Path, script: str) -> dict[str, str]:
    """Make a program of this name, and return an environment in which it is found."""
    path = folder / "scontrol"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(("wanted", "missing"), [
    (("slurm", "", ""), words.not_inside(words.SLURM, "SLURM_JOB_ID")),
    (("trainer", "", ""), words.not_inside(words.TRAINER, "KUBEFLOW_TRAINER_SERVER_URL")),
    (("kubernetes", "job", "train"), words.not_inside(words.KUBERNETES, "KUBERNETES_SERVICE_HOST")),
])  # fmt: skip
def test_outside_of_the_scheduler_no_summary_is_sent(wanted: tuple[str, str, str], missing: str) -> None:
    with pytest.raises(NotInside, match=missing):
        channels.channel(wanted, {})


def test_in_a_pod_the_address_comes_from_the_environment_and_the_rest_from_its_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "SERVICE_ACCOUNT", str(tmp_path))
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(NotInside):
        channels.channel(("kubernetes", "job", "train"), environment)
    (tmp_path / "namespace").write_text("ml\n")
    found = channels.channel(("kubernetes", "job", "train"), environment)
    assert found.where == words.annotations_of("job", "train", "ml")


# The feature, with a channel that the test holds.


class HeldChannel:
    """Channel that sends when the test lets it."""

    where, every_s = "the test", 0.01

    def __init__(self) -> None:
        self.sent: list[RunSummary] = []
        self.trouble: list[Untold] = []
        self.tries = asyncio.Semaphore(0)
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def send(self, summary: RunSummary) -> None:
        self.tries.release()
        await self.may_send.wait()
        if self.trouble:
            raise self.trouble.pop(0)
        self.sent.append(summary)

    async def tried(self, times: int = 1) -> None:
        for _ in range(times):
            await self.tries.acquire()


class Teller:
    """The feature of an agent with group rank 0 in round 2, and what the agent has logged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.channel = HeldChannel()
        self.lines: list[str] = []
        monkeypatch.setattr(feature, "channel", lambda wanted, environment: self.channel)
        kernel: Any = SimpleNamespace(
            console=SimpleNamespace(log=self.lines.append),
            config=SimpleNamespace(environment={}),
            assignment=SimpleNamespace(group_rank=0, round=2),
        )
        self.kernel = kernel
        self.feature = TellScheduler(kernel, tell_scheduler.TellScheduler(tell_scheduler=("slurm", "", "")))

    def asks(self) -> bool:
        """Return whether the agent's next poll asks for the summary."""
        return self.feature.polling(PollRequest(run_id="r", agent_id="a", revision=1), 0.0).wants_summary

    def hear(self, summary: RunSummary | None) -> None:
        self.feature.answered(Reply(epoch="e", revision=1, lease_s=9.0, directive=Wait(reason=""), summary=summary))


@pytest.fixture
async def teller(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Teller]:
    teller = Teller(monkeypatch)
    teller.feature.began()
    async with asyncio.timeout(LONG_S):
        while not teller.asks():  # noqa: ASYNC110 (the channel is opened in a thread)
            await asyncio.sleep(0.001)
        yield teller
    await teller.feature.close()


def at(step: int) -> RunSummary:
    return RunSummary(phase="running", round=2, step=step)


async def test_while_one_message_is_on_its_way_only_the_newest_is_kept(teller: Teller) -> None:
    teller.channel.may_send.clear()
    teller.hear(at(1))
    await teller.channel.tried()
    for step in range(2, 50):
        teller.hear(at(step))
    teller.channel.may_send.set()
    await teller.channel.tried()
    await teller.feature.close()
    assert [each.step for each in teller.channel.sent] == [1, 49]


async def test_an_unchanged_summary_is_not_sent_again(teller: Teller) -> None:
    teller.hear(at(1))
    await teller.channel.tried()
    teller.hear(at(1))
    teller.hear(at(2))
    await teller.channel.tried()
    await teller.feature.close()
    assert [each.step for each in teller.channel.sent] == [1, 2]


async def test_trouble_is_logged_once_until_it_is_over(teller: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "AGAIN_S", 0.01)
    teller.channel.trouble = [Untold("first"), Untold("second", 0.02), Untold("third")]
    teller.hear(at(1))
    await teller.channel.tried(4)
    await teller.feature.close()
    assert teller.lines == [words.not_told("the test", "first"), words.told_again("the test")]
    assert [each.step for each in teller.channel.sent] == [1]


async def test_a_message_has_a_time_limit(teller: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "LIMIT_S", 0.01)
    monkeypatch.setattr(feature, "AGAIN_S", 0.01)
    teller.channel.may_send.clear()
    teller.hear(at(1))
    await teller.channel.tried(3)
    assert teller.lines == [words.not_told("the test", words.took_too_long(0.01))]
    teller.channel.may_send.set()


async def test_the_end_is_sent_at_once_even_within_the_pause(teller: Teller) -> None:
    teller.channel.every_s = LONG_S * 10
    teller.hear(at(1))
    await teller.channel.tried()
    teller.hear(RunSummary(phase="succeeded", round=2))
    teller.feature.ended(ExitCode.SUCCEEDED)
    await teller.feature.close()
    assert [each.phase for each in teller.channel.sent] == ["running", "succeeded"]


async def test_an_exit_waits_for_the_scheduler_for_a_limited_time(
    teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "LAST_S", 0.01)
    teller.channel.may_send.clear()
    teller.hear(at(1))
    await teller.channel.tried()
    await teller.feature.close()
    assert teller.channel.sent == []


async def test_only_group_rank_0s_agent_of_the_latest_round_tells_the_scheduler(teller: Teller) -> None:
    teller.hear(RunSummary(phase="running", round=3))  # a later round, of other nodes
    teller.kernel.assignment = SimpleNamespace(group_rank=1, round=3)
    assert not teller.asks()
    teller.hear(RunSummary(phase="running", round=3))
    teller.hear(None)
    await teller.feature.close()
    assert teller.channel.sent == []


async def test_without_the_scheduler_the_agent_says_so_once_and_asks_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    teller = Teller(monkeypatch)
    monkeypatch.setattr(feature, "channel", channels.channel)
    teller.feature.began()
    async with asyncio.timeout(LONG_S):
        await asyncio.wait(set(teller.feature._tasks))
    assert has_message(teller.lines[0], words.not_inside, scheduler=words.SLURM) and len(teller.lines) == 1
    assert not teller.asks()
    await teller.feature.close()


def test_a_comment_cannot_break_out_of_its_line() -> None:
    nasty = RunSummary(phase="running", sentence="a\nState=SUSPENDED \x1b[31m")
    assert json.loads(json.dumps(channels.in_short(nasty))).isprintable()
