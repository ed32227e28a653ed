"""deploy/docker/compose.yaml with Docker Compose: on Podman, with this machine's etcd and Prometheus.

Missing are Grafana, which no package has, and the registries. This machine's programs replace the registries' images.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from tests.containers.held_workers import HeldWorkers
from tests.support.container_engine import ContainerEngine
from tests.support.process_info import until
from tests.support.programs import Program

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.timeout(900)]

PATIENCE_S = 240.0
ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "docker" / "compose.yaml"
SERVICES = yaml.safe_load(FILE.read_text())["services"]
HERE = [name for name in SERVICES if name != "grafana"]
COMPOSE = "/usr/libexec/docker/cli-plugins/docker-compose"
PROGRAMS = ("etcd", "etcdctl", "prometheus")
DOCKERFILE = f"""\
FROM python:3.13-slim AS etcd
COPY --from=programs {" ".join(PROGRAMS)} /usr/bin/
FROM etcd AS prometheus
RUN install -d -o nobody -g nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
"""
UNTIL_TARGETS = """\
import json, sys, time, urllib.request
def targets():
    try:
        with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/targets") as answer:
            found = json.load(answer)["data"]["activeTargets"]
    except OSError:  # Prometheus does not listen yet
        return []
    return sorted(target["labels"]["job"] + " " + target["health"] for target in found)
until = time.monotonic() + 10.0
while targets() != sys.argv[1:]:
    if time.monotonic() > until:
        sys.exit(1)
    time.sleep(0.2)
"""
"""Program that exits 0 once Prometheus scrapes these targets, or 1 after 10 s. A target is a job and its health."""


class Compose:
    """Docker Compose, in a separate container, with an engine's interface."""

    def __init__(self, engine: ContainerEngine, api: str) -> None:
        self.engine = engine
        self._container = (
            *("--network=none", f"--volume={api.removeprefix('unix://')}:/api.socket", "--env=DOCKER_HOST=unix:///api.socket"),
            *(f"--volume={ROOT}:{ROOT}:ro", f"--workdir={ROOT}", "--volume=/tmp:/tmp:ro"),
        )  # fmt: skip

    async def __call__(self, *words: str) -> Program:
        return await self.engine.run(f"compose-{words[0]}", *self._container, image("etcd"), COMPOSE, *words)

    async def up(self, *words: str) -> Program:
        """Start all services of the page's command except Grafana, and wait until etcd is healthy.

        Podman leaves health checks to systemd's timers, which do not run here.
        """
        up = await self(*words, *HERE)
        await up.line(r"etcd-1 .*ready to serve client requests", PATIENCE_S)
        assert self.engine.call("healthcheck", "run", "rdzv-etcd-1").returncode == 0
        return up


def image(service: str) -> str:
    """Return the name of a service's image, without its digest."""
    return re.sub(r"\$\{\w+:-\}$", "", SERVICES[service]["image"])


@pytest.fixture(scope="module")
def images(built: ContainerEngine, tmp_path_factory: pytest.TempPathFactory) -> None:
    (dockerfile := tmp_path_factory.mktemp("compose") / "Dockerfile").write_text(DOCKERFILE)
    (programs := dockerfile.with_name("programs")).mkdir()
    for program in PROGRAMS:
        if not (here := shutil.which(program)):
            pytest.skip(f"{program}: missing; tests/install-debian-packages.sh installs it")
        shutil.copy(here, programs)
    for service in ("etcd", "prometheus"):
        built.build(image(service), "--target", service, f"--build-context=programs={programs}", dockerfile=dockerfile)


@pytest.fixture
async def compose(images: None, engine: ContainerEngine) -> AsyncIterator[Compose]:
    compose = Compose(engine, await engine.api())
    yield compose
    down = await compose("--file", str(FILE), "--profile", "run", "down", "--volumes", "--timeout", "0")
    assert await down.exit_code(PATIENCE_S) == 0


def of_the_page() -> list[str]:
    """Return the words of the page's command. The images already exist."""
    page = (ROOT / "docs/how-to/clusters.md").read_text()
    (words,) = re.findall(r"^docker compose (-f deploy/docker/compose.yaml .*)$", page, re.M)
    return [word for word in words.split() if word != "--build"]


async def test_the_command_of_the_page_ends_as_the_run_does(compose: Compose) -> None:
    up = await compose.up(*of_the_page())
    assert await up.exit_code(PATIENCE_S) == 0
    ranks = Counter(re.findall(r"(agent-\d) .*rank (\d) of 4, on node", "\n".join(up.out)))
    rounds = Counter(re.findall(r"(agent-\d) .*round (\d+): node", "\n".join(up.err)))
    assert sorted(rank for _, rank in ranks) == list("0123")
    assert sorted(rounds) == [("agent-1", "1"), ("agent-2", "1")]
    # Compose may attach to a container twice. Then it shows each of its lines twice.
    assert all(times == rounds[agent, "1"] for (agent, _), times in ranks.items())


async def test_prometheus_sees_all_servers_and_one_replaces_the_killed_one(compose: Compose, tmp_path: Path) -> None:
    workers = HeldWorkers(tmp_path, 4)
    agent = {"command": [*SERVICES["agent"]["command"][:-1], "/shared/script.py"], "volumes": [workers.volume]}
    (mine := tmp_path / "mine.yaml").write_text(json.dumps({"services": {"agent": agent}}))
    up = await compose.up("-f", str(FILE), "-f", str(mine), "--profile", "run", "up")
    for rank in range(4):
        await up.line(f"rank {rank} of 4", PATIENCE_S)
    scrape = ("rdzv-prometheus-1", "python3", "-c", UNTIL_TARGETS, *["node-agent up"] * 2, *["rdzv-server up"] * 2)
    await until(lambda: compose.engine.inside(*scrape).returncode == 0, PATIENCE_S)
    leader = (await up.line(r"server-([ab])-1 .*leading: 0 runs"))[1]
    compose.engine.call("kill", "--signal", "KILL", f"rdzv-server-{leader}-1")
    await up.line("server-.-1 .*leading: 1 run", PATIENCE_S)
    workers.finish()
    for number in (1, 2):
        await up.line(f"agent-{number} exited with code 0", PATIENCE_S)
