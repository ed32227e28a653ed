"""Units of deploy/systemd, as systemd reads and rates them. The programs do not do what the units forbid.

tests/containers runs them in a real systemd.
"""

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

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
README = (UNITS / "README.md").read_text()
SERVER, AGENT = "rdzv-server.service", "node-agent@.service"
EXPOSURE = {SERVER: 1.2, AGENT: 2.3}
"""The highest exposure that systemd-analyze may report, of 10."""
ROOTS_OWN = {"chown", "fchown"}
"""System calls that SQLite makes only as root. The units run nothing as root."""

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is missing: tests/install-debian-packages.sh installs it"
)


def analyze(*words: str) -> str:
    """Return the output of `systemd-analyze`, which must find nothing wrong."""
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_no_fault_with_them(tmp_path: Path) -> None:
    for unit in UNITS.glob("*.s*"):
        text = re.sub(r"(?<==)/usr/local/bin/\S+", "/bin/true", unit.read_text())  # it checks that the programs exist
        (tmp_path / unit.name.replace("@", "@nightly")).write_text(text)
    assert analyze("verify", *map(str, tmp_path.iterdir())) == ""


def test_the_page_installs_the_programs_where_the_units_look_for_them() -> None:
    (script,) = re.findall(
        r"^```bash\n(sudo python3 .*?)^```", (ROOT / "docs/how-to/clusters.md").read_text(), re.M | re.S
    )
    links = re.findall(r"ln -sf (.+) (\S+)$", script, re.M)
    linked = {f"{folder}{Path(program).name}" for programs, folder in links for program in programs.split()}
    assert linked == {
        name for unit in UNITS.glob("*.service") for name in re.findall(r"ExecStart=(\S+)", unit.read_text())
    }


@pytest.mark.parametrize("unit", EXPOSURE)
def test_the_units_exposure_is_what_the_readme_says(unit: str) -> None:
    found = re.search(r"exposure level for \S+: (\S+)", analyze("security", "--offline=true", str(UNITS / unit)))
    assert found and float(found[1]) <= EXPOSURE[unit]
    assert f"| `{unit}` | {found[1]} " in README


def allowed_calls(unit: str) -> set[str]:
    """Return the system calls that the unit allows."""
    known = set(members("@known"))
    allowed = known
    for line in re.findall(r"^SystemCallFilter=(.*)", (UNITS / unit).read_text(), re.M):
        named = {call for name in line.removeprefix("~").split() for call in members(name)}
        allowed = allowed - named if line.startswith("~") else allowed & named
    return allowed | set(members("@default"))


def members(name: str) -> list[str]:
    """Return the system calls of this group, and of groups in it."""
    if not name.startswith("@"):
        return [name]
    words = [line.split("#")[0].strip() for line in analyze("syscall-filter", name).splitlines()[1:]]
    return [call for word in words if word for call in members(word)]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")
async def test_a_run_works_under_the_restrictions_of_the_units(cluster: Cluster, tmp_path: Path) -> None:
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
    """Return the command that records the system calls of a command and its children."""
    return ("strace", "--follow-forks", "--quiet=all", "--output", str(log))
