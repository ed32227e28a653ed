"""docs/how-to/troubleshoot.md: real processes produce each symptom, and print what the page quotes."""

import asyncio
import html
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node_agent import words
from rdzv_server.words import cluster, completion, silent_runs
from rdzv_server.words import service as service_words
from rdzv_server.words import storage as storage_words
from tests.integration.replicas import Replicas
from tests.support.certificates import Authority
from tests.support.cluster import Cluster
from tests.support.disk import Disk
from tests.support.etcd import etcd_cluster, need_etcd
from tests.support.message_search import any_numbers, part, pattern
from tests.support.outages import LOST, REACHED
from tests.support.poison import poison
from tests.support.programs import Program, Server, start_agent
from tests.support.prometheus import Prometheus, need_prometheus
from tests.support.rdzvctl import rdzvctl
from tests.support.wall_clock import WallClock, sweep
from tests.support.worker_hub import WorkerHub

ROOT = Path(__file__).parents[2]
PAGE, ALERTS = ROOT / "docs" / "how-to" / "troubleshoot.md", ROOT / "deploy" / "prometheus" / "alerts.yaml"
SLOW = ("--lease", "500", "--join-timeout", "500", "--shutdown-timeout", "5", "--last-call-timeout", "0")
TRAIN = ("--run-id", "train")
YEAR_S = 365 * 86_400
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")


class Told(dict[str, list[str]]):
    """Output of each source, by its name in the page's quotations."""

    def of(self, source: str, *programs: Program) -> None:
        self.setdefault(source, []).extend(TIME.sub("", line) for program in programs for line in program.err)

    async def by_operators(self, server: Server) -> None:
        """Add the present output of the status, `rdzvctl why` and the metrics."""
        await self.by_rdzvctl(env={"RDZV_ENDPOINT": server.endpoint})
        await self.by_pages(server)

    async def by_rdzvctl(self, *flags: str, code: int = 0, env: Mapping[str, str] | None = None) -> None:
        """Add the output of `rdzvctl why`, which ends with this exit code."""
        why = await rdzvctl(*flags, "why", "train", env={"COLUMNS": "500", **(env or {})})
        assert why.code == code, why
        self.setdefault("why", []).extend([*why.out, *why.err])

    async def by_pages(self, server: Server) -> None:
        """Add the server's answers at all of its paths for people and monitoring programs."""
        paths = {"status": "/v1/status?run_id=train&pretty=0", "metrics": "/metrics", "readyz": "/readyz"}
        for source, path in paths.items():
            self.setdefault(source, []).extend((await answer(server, path)).splitlines())
        self.setdefault("page", []).append(text_of(await answer(server, "/runs/train?plain=0")))

    async def by_prometheus(self, server: Server, folder: Path, *alerts: str) -> None:
        """Add a real Prometheus's view of the server and the texts of its alerts, which fire at once here."""
        rules = folder / "alerts.yaml"
        rules.write_text(re.sub(r"for: \w+", "for: 0s", ALERTS.read_text()))
        prometheus = await Prometheus.watch(folder, {"rdzv-server": [server.endpoint]}, rules)
        self["alert"] = [f"{name}: {await prometheus.fires(name)}" for name in alerts]
        self["prometheus"] = [
            f'up{{job="{each["metric"]["job"]}"}} {each["value"][1]}' for each in await prometheus.series("up")
        ]

    async def by_all(self, cluster: Cluster) -> None:
        """Add what operators see, and the logs of agent a and the server."""
        await self.by_operators(cluster.server)
        self.of("node-agent", cluster.agents["a"])
        self.of("rdzv-server", cluster.server)


@dataclass(frozen=True)
class Place:
    """Where symptoms are produced: worker hub, folder and certificate authority."""

    hub: WorkerHub
    folder: Path
    authority: Authority

    @asynccontextmanager
    async def cluster(self, *flags: str) -> AsyncIterator[Cluster]:
        async with Cluster(self.hub, *flags) as cluster:
            await cluster.serve()
            yield cluster


Story = Callable[[Place, Told], Awaitable[None]]
STORIES: dict[str, Story] = {}


def symptom(heading: str) -> Callable[[Story], Story]:
    def add(story: Story) -> Story:
        STORIES[heading] = story
        return story

    return add


@symptom("A run does not start")
async def waits(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        a = await cluster.node("a", *TRAIN, "--nnodes", "2", *SLOW)
        await a.line(completion.waiting_for(1))
        await told.by_operators(cluster.server)
        told.of("node-agent", a)
        told.of("rdzv-server", cluster.server)


@symptom("A run has stopped")
async def stopped(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        workers = await cluster.nodes("a", *TRAIN, *SLOW, nproc=1)
        workers[0].order_exit(3)
        assert await cluster.agents["a"].exit_code() == 1
        await told.by_all(cluster)


@symptom("A node has joined, but stands by")
async def kept_out(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        ctl = ("-m", "rdzvctl", "--endpoint", cluster.endpoint)
        cordon = await Program.start(sys.executable, *ctl, "cordon", "b", "--reason", "the fan of node c")
        assert await cordon.exit_code() == 0
        for name in "ab":
            await cluster.node(name, *TRAIN, "--nnodes", "2", *SLOW, nproc=1)
        await cluster.agents["a"].line(completion.waiting_for(1))
        await cluster.agents["b"].line("cordoned")
        await told.by_all(cluster)
        told.of("node-agent", cluster.agents["b"])
        uncordon = await Program.start(sys.executable, *ctl, "uncordon", "b")
        assert await uncordon.exit_code() == 0
        await cluster.hub.group(2)


@symptom("A node is lost")
async def lost(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        await cluster.nodes("ab", *TRAIN, "--nnodes", "2", *SLOW, nproc=1)
        await cluster.agents.pop("b").kill()
        await cluster.agents["a"].line(completion.waiting_for(1))
        await told.by_all(cluster)


@symptom("No agent of a run is heard")
async def silent(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        await cluster.nodes("ab", *TRAIN, "--nnodes", "2", *SLOW, "--lease", "1", nproc=1)
        for agent in cluster.agents.values():
            agent.signal(signal.SIGSTOP)
        await cluster.server.line(any_numbers(pattern(silent_runs.awaited(1))))
        await told.by_operators(cluster.server)
        for agent in cluster.agents.values():
            agent.signal(signal.SIGCONT)
        await cluster.server.line(any_numbers(pattern(silent_runs.heard_again, after_s=1, has_others=True)))
        told.of("rdzv-server", cluster.server)


@symptom("A worker fails again and again")
async def fails(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        await cluster.node("a", *TRAIN, "--max-restarts", "1", *SLOW, nproc=1)
        for _ in range(2):
            (worker,) = await cluster.hub.group(1)
            worker.kill()
        assert await cluster.agents["a"].exit_code() == 1
        await told.by_all(cluster)


@symptom("A run restarts too often")
async def restarts(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        await cluster.nodes("a", *TRAIN, "--nnodes", "1:2", *SLOW, nproc=1)
        await cluster.node("b", *TRAIN, *SLOW, nproc=1)
        await cluster.hub.group(2)
        await cluster.agents.pop("b").kill()
        await cluster.hub.group(1)
        await told.by_operators(cluster.server)
        told.of("rdzv-server", cluster.server)


@symptom("A run is unhealthy")
async def unhealthy(place: Place, told: Told) -> None:
    need_prometheus()
    async with Cluster(place.hub) as cluster:
        await cluster.serve(env=poison("train"))
        (worker,) = await cluster.nodes("a", *TRAIN, "--max-restarts", "1", *SLOW, nproc=1)
        worker.kill()
        await cluster.server.line("is set apart")
        await told.by_operators(cluster.server)
        await told.by_prometheus(cluster.server, place.folder, "RdzvRunSetApart")
        told.of("rdzv-server", cluster.server)


@symptom("The server cannot be reached")
async def unreachable(place: Place, told: Told) -> None:
    need_prometheus()
    async with place.cluster() as cluster:
        await cluster.nodes("a", *TRAIN, *SLOW, nproc=1)
        await cluster.lose_server()
        await cluster.agents["a"].line(LOST)
        new = await cluster.node("b", *TRAIN, "--connect-timeout", "2", *SLOW, nproc=1)
        assert await new.exit_code() == 75
        await told.by_rdzvctl("--endpoint", cluster.endpoint, code=75)
        await told.by_prometheus(cluster.server, place.folder, "RdzvServerDown")
        told.of("node-agent", cluster.agents["a"], cluster.agents.pop("b"))


@symptom("The server is upgraded")
async def upgraded(place: Place, told: Told) -> None:
    async with place.cluster("--store", f"sqlite:{place.folder}/state.db") as durable:
        (worker,) = await durable.nodes("a", *TRAIN, *SLOW, nproc=1)
        durable.server.signal(signal.SIGTERM)
        assert await durable.server.exit_code() == 0
        old = durable.server
        await durable.regain_server()
        await durable.agents["a"].line(REACHED)
        await told.by_operators(durable.server)
        told.of("rdzv-server", old, durable.server)
        told.of("node-agent", durable.agents["a"])
        assert worker.pid and durable.hub.survivors() == [worker.pid]


@symptom("The store cannot be written")
async def cannot_write(place: Place, told: Told) -> None:
    disk_path = place.folder / "disk"
    if os.geteuid():
        pytest.skip("only root may mount")
    need_prometheus()
    with Disk(disk_path) as disk:
        async with place.cluster("--store", f"sqlite:{disk_path}/state.db") as cluster:
            await cluster.nodes("a", *TRAIN, "--nnodes", "1:2", *SLOW, nproc=1)
            disk.fill()
            b = await cluster.node("b", *TRAIN, *SLOW, nproc=1)
            await b.line(part(storage_words.cannot_write))
            await cluster.server.line(service_words.NOTHING_DECIDED)
            await told.by_operators(cluster.server)
            await told.by_prometheus(cluster.server, place.folder, "RdzvServerNotReady")
            disk.free()
            await cluster.server.line(service_words.STORE_IS_BACK)
            told.of("node-agent", b)
            told.of("rdzv-server", cluster.server)


@symptom("There is no leader")
async def no_leader(place: Place, told: Told) -> None:
    need_etcd()
    need_prometheus()
    (place.folder / "etcd").mkdir()
    with etcd_cluster(place.folder / "etcd", 3) as etcd:
        async with Replicas(place.hub, etcd, "operations") as replicas:
            leader = await replicas.replicate()
            await leader.leads()
            agent = await replicas.node("a", *TRAIN, *SLOW, nproc=1)
            await replicas.hub.group(1)
            for member in etcd.members[:2]:
                member.kill()
            await leader.line(pattern(cluster.lease_not_renewed))
            await agent.line(LOST)
            await told.by_rdzvctl("--timeout", "1", "--endpoint", leader.endpoint, code=75)
            await told.by_pages(leader)
            await told.by_prometheus(leader, place.folder, "RdzvNoLeader", "RdzvServerNotReady")
            told.of("rdzv-server", leader)
            told.of("node-agent", agent)


@symptom("An agent says that it was removed from the run")
async def fenced(place: Place, told: Told) -> None:
    async with place.cluster() as cluster:
        await cluster.nodes("ab", *TRAIN, "--nnodes", "2", "--lease", "5", "--shutdown-timeout", "5", nproc=1)
        agent = cluster.agents["a"]
        agent.signal(signal.SIGSTOP)
        await cluster.server.line("node a lost")
        agent.signal(signal.SIGCONT)
        await agent.line(pattern(words.leaving.rejoining, slept_s=0.0))
        await cluster.hub.group(2)
        await told.by_operators(cluster.server)
        told.of("node-agent", agent)
        told.of("rdzv-server", cluster.server)


@symptom("The disk is full of logs")
async def full(place: Place, told: Told) -> None:
    if os.geteuid():
        pytest.skip("only root may mount")
    with Disk(place.folder / "disk") as disk:
        script = "import os\nwhile os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': print('x' * 10_000)\n"
        program = disk.path.parent / "train.py"
        program.write_text(script)
        async with place.cluster() as cluster:
            cluster.script = program
            logs = ("-r", "1", "--log-dir", str(disk.path))
            agent = await cluster.node("a", *TRAIN, "--max-restarts", "1", *logs, *SLOW, nproc=1)
            assert await agent.exit_code() == 0
            await told.by_all(cluster)


@symptom("Tokens, certificates and clocks")
async def refused(place: Place, told: Told) -> None:
    need_prometheus()
    path = place.folder
    (path / "token").write_text("s" * 32 + "\n")
    (path / "other").write_text("t" * 32 + "\n")
    server = await Server.listen("--token-file", str(path / "token"))
    wrong = await start_agent("--endpoint", server.endpoint, "--token-file", str(path / "other"), *TRAIN)
    none = await start_agent("--endpoint", server.endpoint, *TRAIN)
    assert [await wrong.exit_code(), await none.exit_code()] == [77, 77]
    await told.by_rdzvctl("--endpoint", server.endpoint, code=77)
    await told.by_rdzvctl("--endpoint", server.endpoint, "--token-file", str(path / "other"), code=77)
    await told.by_pages(server)
    told["page"].append(text_of(await answer(server, "/login", "-d", f"token={'t' * 32}")))
    told["metrics"] = (await answer(server, "/metrics", "-H", f"Authorization: Bearer {'s' * 32}")).splitlines()
    await told.by_prometheus(server, path, "RdzvServerDown")
    tls = await Server.listen(*_shown(place.authority))
    names = ("--endpoint", f"localhost:{tls.port}", *TRAIN)
    plain = await start_agent(*names)
    mistrusting = await start_agent(*names, "--tls-ca", Authority(path, "other").ca)
    assert [await plain.exit_code(), await mistrusting.exit_code()] == [77, 77]
    clock = WallClock(path / "clock")
    clock.jump(-YEAR_S)
    slow = await start_agent(*names, "--tls-ca", place.authority.ca, env=clock.env)
    assert await slow.exit_code() == 77
    await told.by_rdzvctl("--endpoint", tls.endpoint, code=77)
    other_ca = ("--tls-ca", str(path / "other.pem"))
    await told.by_rdzvctl("--endpoint", tls.endpoint, *other_ca, code=77)
    told["page"].append(await answer(tls, "/runs/train?plain=0"))
    certified = ("--endpoint", f"localhost:{tls.port}", "--tls-ca", place.authority.ca)
    await told.by_rdzvctl(*certified, code=77, env=clock.env)
    sweep()
    told.of("node-agent", wrong, none, plain, mistrusting, slow)
    told.of("rdzv-server", server)


def text_of(markup: str) -> str:
    """Return the text of a page, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def _shown(authority: Authority) -> tuple[str, ...]:
    pair = authority.issue("server")
    return ("--tls-cert", pair.cert, "--tls-key", pair.key)


async def answer(server: Server, path: str, *flags: str) -> str:
    """Return what a browser gets at this path, even from a server that refuses. `flags`: curl's."""
    if shutil.which("curl") is None:
        pytest.skip("curl is missing: tests/install-debian-packages.sh installs it")
    process = await asyncio.create_subprocess_exec(
        "curl", "-sL", *flags, f"http://{server.endpoint}{path}", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode()


def entries() -> dict[str, list[tuple[str, str]]]:
    """Return the quoted lines of each symptom, with their source."""
    found: dict[str, list[tuple[str, str]]] = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        if heading == "Report a bug":
            continue
        blocks = re.findall(r"^```([\w-]+)\n(.*?)^```", body, re.M | re.S)
        found[heading] = [(source, line) for source, text in blocks for line in text.splitlines()]
    return found


def test_every_symptom_is_made_here() -> None:
    assert entries().keys() == STORIES.keys()
    assert all(entries().values()), "each has something to look for"


@pytest.mark.parametrize("heading", STORIES)
async def test_the_page_quotes_messages_as_they_are(
    hub: WorkerHub, tmp_path: Path, authority: Authority, heading: str
) -> None:
    told = Told()
    await STORIES[heading](Place(hub, tmp_path, authority), told)
    for source, line in entries().get(heading, []):
        pattern = ".*".join(map(re.escape, line.split("…")))
        assert any(re.search(pattern, each) for each in told[source]), (source, line, told[source])
