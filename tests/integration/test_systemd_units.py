"""Units of deploy/systemd, as systemd reads and judges them, and what they forbid is not what the programs do."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.process_info import children
from tests.support.programs import WORKER, Program, Server
from tests.support.service_manager import Manager
from tests.support.worker_hub import WorkerHub

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
PAGE = (ROOT / "docs" / "clusters.md").read_text()
README = (UNITS / "README.md").read_text()
SERVER, AGENT = "rdzv-server.service", "node-agent@.service"
EXPOSURE = {SERVER: 1.2, AGENT: 2.3}
"""The most that systemd-analyze may find, of 10."""
ROOTS_OWN = {"chown", "fchown"}
"""System calls that SQLite makes for root alone, as which the units run nothing."""

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is missing: tests/install-debian-packages.sh installs it"
)


def analyze(*words: str) -> str:
    """Output of `systemd-analyze`, which has found nothing wrong."""
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_no_fault_with_them(tmp_path: Path) -> None:
    for unit in UNITS.glob("*.s*"):
        text = re.sub(r"(?<==)/usr/local/bin/\S+", "/bin/true", unit.read_text())  # it looks for the programs
        (tmp_path / unit.name.replace("@", "@nightly")).write_text(text)
    assert analyze("verify", *map(str, tmp_path.iterdir())) == ""


@pytest.mark.parametrize("unit", EXPOSURE)
def test_their_exposure_is_what_the_readme_says(unit: str) -> None:
    found = re.search(r"exposure level for \S+: (\S+)", analyze("security", "--offline=true", str(UNITS / unit)))
    assert found and float(found[1]) <= EXPOSURE[unit]
    assert f"| `{unit}` | {found[1]} " in README


def allowed_calls(unit: str) -> set[str]:
    """Names of the system calls that the unit lets pass."""
    known = set(members("@known"))
    allowed = known
    for line in re.findall(r"^SystemCallFilter=(.*)", (UNITS / unit).read_text(), re.M):
        named = {call for name in line.removeprefix("~").split() for call in members(name)}
        allowed = allowed - named if line.startswith("~") else allowed & named
    return allowed | set(members("@default"))


def members(name: str) -> list[str]:
    """System calls of this group, and of those in it."""
    if not name.startswith("@"):
        return [name]
    words = [line.split("#")[0].strip() for line in analyze("syscall-filter", name).splitlines()[1:]]
    return [call for word in words if word for call in members(word)]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
async def test_what_they_forbid_no_run_needs(cluster: Cluster, tmp_path: Path) -> None:
    """A whole run, with a worker that fails, and with the state in a file."""
    calls = {unit: tmp_path / unit for unit in EXPOSURE}
    state = f"sqlite:{tmp_path}/runs.db"
    server = await Program.start(*trace(calls[SERVER]), *Server.command("--store", state))
    place = ("--endpoint", (await server.line(r"listening on http://(\S+)"))[1], "--max-restarts", "1")
    agent = (sys.executable, "-m", "node_agent", *place, WORKER)
    cluster.agents["a"] = await Program.start(*trace(calls[AGENT]), *agent, env=cluster.hub.env)
    (worker,) = await cluster.hub.group(1)
    worker.kill()
    await cluster.finish(await cluster.hub.group(1))
    for child in children(server.pid):
        os.kill(child, signal.SIGTERM)
    assert await server.exit_code() == 0
    for unit, log in calls.items():
        made = set(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.M))
        assert {"execve", "socket", "epoll_wait"} <= made
        assert made - allowed_calls(unit) <= ROOTS_OWN


def trace(log: Path) -> tuple[str, ...]:
    """The command that has the system calls of a command written down, with those of its children."""
    return ("strace", "--follow-forks", "--quiet=all", "--output", str(log))


# The block of docs/clusters.md.

SYSTEMCTL = """\
#!/bin/sh
case "$1 $2" in
  "enable --now") shift 2; exec {systemctl} --quiet --root={root} enable "$@" 2>/dev/null ;;
  "start "*) echo "$2" >>{root}/started ;;
esac
"""
"""systemctl where systemd is not process 1: units are enabled by the real one, and those to be started are noted."""


def carry_out_the_block(root: Path) -> None:
    """Carry out the commands of the page, on the files below this folder."""
    block = re.search(r"^## systemd\n.*?^```bash\n(.*?)^```", PAGE, re.M | re.S)
    assert block
    (root / "etc/systemd/system").mkdir(parents=True)
    (programs := root / "bin").mkdir()
    real = shutil.which("systemctl")
    for name, text in (("sudo", '#!/bin/sh\nexec "$@"\n'), ("systemctl", SYSTEMCTL.format(systemctl=real, root=root))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    script = re.sub(r" /etc/", f" {root}/etc/", block[1])
    subprocess.run(["bash", "-euc", script], cwd=ROOT, env=env, check=True, capture_output=True, timeout=60)


def command_of(unit: Path, instance: str, environment: Path) -> list[str]:
    """Words of ExecStart, behind the program, as systemd puts in the instance and the variables of a file."""
    variables = dict(line.split("=", 1) for line in environment.read_text().splitlines())
    line = re.search(r"^ExecStart=\S+ (.*)", unit.read_text(), re.M)
    assert line
    words = line[1].replace("%i", instance).split()
    return [part for word in words for part in (variables[word[1:]].split() if word[0] == "$" else [word])]


async def test_what_the_page_sets_up_is_a_run(hub: WorkerHub, tmp_path: Path) -> None:
    carry_out_the_block(tmp_path)
    etc = tmp_path / "etc"
    for link in ("sockets.target.wants/rdzv-server.socket", "multi-user.target.wants/rdzv-server.service"):
        assert (etc / "systemd/system" / link).is_symlink()
    assert (tmp_path / "started").read_text() == "node-agent@nightly.service\n"
    command = command_of(etc / "systemd/system" / AGENT, "nightly", etc / "node-agent/nightly.env")
    async with Manager(tmp_path) as manager, Cluster(hub) as cluster:
        server = await manager.serve("--store", "memory")
        cluster.servers.append(server)
        yours = {"SERVER:29400": server.endpoint, "8": "1", "/srv/train.py": WORKER}
        words = [yours.get(word, word) for word in command]
        for name in "ab":
            agent = (sys.executable, "-m", "node_agent", "--node-id", name, *words)
            cluster.agents[name] = await Program.start(*agent, env={**hub.env, **manager.env})
        workers = await hub.group(2)
        assert (await server.run())["run_id"] == "nightly"
        await cluster.finish(workers)
