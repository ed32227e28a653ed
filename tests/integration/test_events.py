"""Events of real runs: each reader gets each event once and in order, even if servers are lost."""

import asyncio
import errno
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rdzv_protocol import paths
from rdzv_protocol.words import flags

from rdzv_server.words import exports
from tests.integration.replicas import Replicas
from tests.support.certificates import Authority
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.programs import PATIENCE_S, Program, Server
from tests.support.webhook_receiver import WebhookReceiver
from tests.support.worker_hub import WorkerHub

RUN = "run/with a slash"
FLAGS = ("--run-id", RUN, "--nnodes", "2", "--max-restarts", "3", *PATIENT)


class Follower:
    """Follows the stream of a run as a browser does: it reconnects with the last number when its connection ends."""

    def __init__(self, endpoints: Callable[[], list[str]]) -> None:
        self.events: list[dict[str, Any]] = []
        self.connections = 0
        self._endpoints = endpoints
        self._arrived = asyncio.Condition()
        self._task = asyncio.create_task(self._follow())

    async def has(self, kind: str) -> None:
        """Return when the last event is of this kind."""
        async with asyncio.timeout(PATIENCE_S), self._arrived:
            await self._arrived.wait_for(lambda: bool(self.events) and self.events[-1]["kind"] == kind)
        self._task.cancel()

    async def _follow(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                for endpoint in self._endpoints():
                    try:
                        await self._read(session, endpoint)
                    except aiohttp.ClientError:
                        await asyncio.sleep(0.05)

    async def _read(self, session: aiohttp.ClientSession, endpoint: str) -> None:
        headers = {"Accept": "text/event-stream"}
        if self.events:
            headers["Last-Event-ID"] = str(self.events[-1]["number"])
        async with session.get(f"http://{endpoint}{paths.events_of(RUN)}", headers=headers) as answer:
            if answer.status != 200:
                await asyncio.sleep(0.05)
                return
            self.connections += 1
            kind = ""
            async for line in answer.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                kind = value if name == "event" else kind
                if name == "data" and kind != "error":
                    async with self._arrived:
                        self.events.append(json.loads(value))
                        self._arrived.notify_all()


async def all_pages(server: Server) -> list[dict[str, Any]]:
    """Every event of the run, three on a page."""
    events: list[dict[str, Any]] = []
    after, last = 0, 1
    while after < last:
        page = json.loads(await server.get(f"{paths.events_of(RUN)}?after={after}&limit=3"))
        events += page["events"]
        after, last = page["after"], page["last"]
    return events


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["number"] for event in events]


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as receiver:
        yield receiver


@pytest.fixture
def webhook(receiver: WebhookReceiver, tmp_path: Path) -> tuple[str, ...]:
    """Return the flags of a server that sends its events to the receiver."""
    return flags_for(receiver, tmp_path)


def flags_for(receiver: WebhookReceiver, folder: Path) -> tuple[str, ...]:
    secret = folder / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    return ("--webhook", receiver.url, "--webhook-secret-file", str(secret))


async def test_each_reader_gets_each_event_once_though_the_server_is_killed_in_between(
    hub: WorkerHub, tmp_path: Path, receiver: WebhookReceiver, webhook: tuple[str, ...]
) -> None:
    log = tmp_path / "events.jsonl"
    async with Cluster(hub, "--store", f"sqlite:{tmp_path}/state.db", "--event-log", str(log), *webhook) as cluster:
        await cluster.serve()
        follower = Follower(lambda: [cluster.endpoint])
        first = await cluster.nodes("ab", *FLAGS)
        first[0].kill()
        second = await hub.group(4)
        await cluster.restart_server()
        second[0].kill()
        await cluster.finish(await hub.group(4))
        await follower.has("run_succeeded")
        events = await all_pages(cluster.server)
        kinds = [event["kind"] for event in events]
        assert numbers(events) == list(range(1, len(events) + 1))
        assert follower.events == events and follower.connections >= 2
        await receiver.has(RUN, len(events))
        assert receiver.numbers(RUN) == numbers(events)
        (run,) = (await cluster.server.status())["runs"]
        await cluster.server.end()
    assert (kinds.count("node_joined"), kinds.count("workers_failed"), kinds.count("round_started")) == (2, 2, 3)
    assert [event["charged"] for event in events if event["kind"] == "round_started"] == [False, True, True]
    written = numbers([json.loads(line) for line in log.read_text().splitlines()])
    assert written == sorted(set(written)) and written[-1] == len(events)
    spent = run["time_s"]
    assert sum(spent[name] for name in ("running", "forming", "restarting", "waiting")) <= run["age_s"] + 0.01
    assert spent["restarts"].keys() == {"worker_failure"} and spent["running"] > 0.0


async def test_a_server_sends_its_events_to_a_receiver_whose_authority_the_machine_trusts(
    hub: WorkerHub, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.issue("receiver"))
    async with WebhookReceiver(tls) as receiver, Cluster(hub, *flags_for(receiver, tmp_path)) as cluster:
        trusting = await cluster.serve(env={"SSL_CERT_FILE": authority.ca}, is_forked=False)
        await cluster.finish(await cluster.nodes("ab", *FLAGS))
        await receiver.has(RUN, 1)
        doubting = await cluster.serve(is_forked=False)
        await cluster.finish(await cluster.nodes("ab", *FLAGS))
        await doubting.line("CERTIFICATE_VERIFY_FAILED")
        assert not any("CERTIFICATE_VERIFY_FAILED" in line for line in trusting.err)


async def test_event_numbers_continue_without_a_gap_when_another_server_takes_over(
    unserved: Replicas, receiver: WebhookReceiver, webhook: tuple[str, ...]
) -> None:
    replicas = unserved
    await (await replicas.replicate(*webhook)).leads()
    await (await replicas.replicate(*webhook)).line("following")
    follower = Follower(lambda: [server.endpoint for server in replicas.running()])
    first = await replicas.nodes("ab", *FLAGS)
    first[0].kill()
    second = await replicas.hub.group(4)
    await replicas.lose_server()
    await replicas.regain_server()
    second[0].kill()
    await replicas.finish(await replicas.hub.group(4))
    await follower.has("run_succeeded")
    events = await all_pages(await replicas.leader())
    assert numbers(events) == list(range(1, len(events) + 1))
    assert follower.events == events
    await receiver.has(RUN, len(events))
    assert receiver.numbers(RUN) == numbers(events)


async def test_the_event_log_is_opened_again_when_its_rotation_is_signalled(hub: WorkerHub, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    async with Cluster(hub, "--event-log", str(log)) as cluster:
        await cluster.serve()
        workers = await cluster.nodes("ab", *FLAGS)
        os.rename(log, f"{log}.1")
        cluster.server.signal(signal.SIGHUP)
        await cluster.finish(workers)
        cluster.server.signal(signal.SIGTERM)
        assert await cluster.server.exit_code() == 0
    before, after = tmp_path.joinpath("events.jsonl.1").read_text(), log.read_text()
    told = [json.loads(line)["kind"] for line in (before + after).splitlines()]
    assert before and told[0] == "run_created" and told[-1] == "run_succeeded"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--event-log", "{}/nowhere/events"), pattern(exports.bad_event_log, why=os.strerror(errno.ENOENT))),
        (("--webhook", "ftp://x", "--webhook-secret-file", "{}/secret"), pattern(exports.BAD_URL)),
        (("--webhook", "http://x/"), pattern(flags.belong_together, one="--webhook", other="--webhook-secret-file")),
        (
            ("--webhook", "http://x/", "--webhook-secret-file", "{}/none"),
            pattern(exports.unreadable_secret, why=os.strerror(errno.ENOENT)),
        ),
        (("--webhook", "http://x/", "--webhook-secret-file", "{}/empty"), pattern(exports.empty_secret)),
    ],
)
async def test_unusable_export_targets_are_reported_when_the_server_starts(
    tmp_path: Path, flags: tuple[str, ...], says: str
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (tmp_path / "empty").write_text("\n")
    flags = tuple(flag.format(tmp_path) for flag in flags)
    program = await Program.start(*Server.command("--store", "memory", *flags))
    assert await program.exit_code() == 2
    assert await program.line(says)
