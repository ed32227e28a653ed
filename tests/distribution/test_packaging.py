"""Wheel and sdist: built twice, installed alone into every available Python, and used there."""

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, distribution
from pathlib import Path

import pytest
import rdzv_protocol
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
PACKAGES = ("rdzv_server", "node_agent", "rdzvctl")
SOURCES = ("protocol", *PACKAGES, "docs", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST = "oldest libraries"
OURS = {"rdzv_protocol", *PACKAGES}
BUILD = "import sys, hatchling.build as b; print(b.build_wheel(sys.argv[1]), b.build_sdist(sys.argv[1]))"
USER = """\
from node_agent import LaunchConfig, elastic_launch
from rdzv_protocol.messages import LeaveRequest
from rdzv_server.config import Limits

config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2)
results = elastic_launch(config, "echo")("hello")
limits: Limits = Limits(connections=3)

# What these are is known, or nothing would be wrong here, and strict mypy would complain of what it need not ignore.
LaunchConfig(min_nodes="one", max_nodes=1, nproc_per_node=2)  # type: ignore[arg-type]
Limits(connections="three")  # type: ignore[arg-type]
LeaveRequest(run_id=3)  # type: ignore[arg-type, call-arg]
"""
"""A user's program that is type-checked strictly. Its last lines are wrong."""


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    """Return the output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def build(folder: Path, umask: int) -> list[Path]:
    """Build wheel and sdist, from a copy of the sources whose files have other times and modes."""
    source, out = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, source / name)
    for path in source.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
        os.utime(path, (umask, umask))
    names = run(sys.executable, "-c", BUILD, out, cwd=source, SOURCE_DATE_EPOCH="1700000000").split()
    return [out / name for name in names[-2:]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(tmp_path_factory.mktemp("built"), 0o022)


def test_two_builds_are_the_same_byte_for_byte(built: list[Path], tmp_path: Path) -> None:
    again = build(tmp_path, 0o077)
    assert [path.name for path in again] == [path.name for path in built]
    for one, other in zip(built, again, strict=True):
        assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest(), one.name


def test_the_version_is_that_of_the_programs(built: list[Path]) -> None:
    version = rdzv_protocol.VERSION
    assert [path.name for path in built] == [f"rdzv_server-{version}-py3-none-any.whl", f"rdzv_server-{version}.tar.gz"]
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text()


def test_the_sdist_has_only_the_sources_of_the_wheel(built: list[Path]) -> None:
    with tarfile.open(built[1]) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert tops == {*SOURCES, "PKG-INFO"}


def python(version: str) -> str:
    """Return the interpreter of this version on PATH, or pyenv's. Skip the test if there is none."""
    places = [*os.environ["PATH"].split(":"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin"))]
    for place in places:
        found = Path(place, f"python{version}")
        if "shims" not in place and found.is_file():
            return str(found)
    pytest.skip(f"no Python {version} here")


@pytest.fixture(scope="module", params=[*VERSIONS, OLDEST])
def installed(request: pytest.FixtureRequest, built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which only the wheel was installed.

    Each version of Python has the latest libraries. One environment has the oldest that pyproject.toml allows.
    """
    folder = tmp_path_factory.mktemp("python")
    if request.param == OLDEST:
        return install(python(VERSIONS[0]), built[0], folder, "--resolution", "lowest-direct")
    return install(python(request.param), built[0], folder)


def install(interpreter: str, what: Path, folder: Path, *flags: str) -> Path:
    run(interpreter, "-m", "venv", "--without-pip", folder)
    own = folder / "bin" / "python"
    run(find_uv_bin(), "pip", "install", "--native-tls", "--python", own, *flags, what)
    return own


def names_in_site_packages(own: Path) -> set[str]:
    """Return the top-level names that only our package has installed."""
    code = "import importlib.metadata as m, json; print(json.dumps([f.parts[0] for f in m.files('rdzv-server')]))"
    return {name for name in json.loads(run(own, "-c", code)) if not name.endswith(".dist-info") and name != ".."}


def test_the_installed_wheel_runs_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    run(find_uv_bin(), "pip", "check", "--python", installed)
    assert names_in_site_packages(installed) == OURS
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    programs = installed.parent
    assert run(programs / "rdzv-server", "--version").split()[-1] == rdzv_protocol.VERSION
    out = run(programs / "node-agent", "--standalone", "--nproc", "2", script)
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(re.findall(r"rank \d of \d", out))


def test_nodes_meet_at_its_server(installed: Path, tmp_path: Path) -> None:
    """It includes a request whose head comes in two pieces, which aiohttp reads differently in each version."""
    script, programs = tmp_path / "train.py", installed.parent
    script.write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    command = [programs / "rdzv-server", "--host", "127.0.0.1", "--port", "0", "--store", "memory"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            found = next(
                match for line in server.stderr if (match := re.search(r"listening on http://127\.0\.0\.1:(\d+)", line))
            )
            port = int(found[1])
            with socket.create_connection(("127.0.0.1", port), timeout=60) as halves:
                halves.sendall(b"GET /healthz HT")
                agent = [programs / "node-agent", "--endpoint", f"127.0.0.1:{port}", "--nnodes", "2", "--nproc", "2"]
                other = subprocess.Popen([*agent, "--node-id", "b", script], stdout=subprocess.PIPE, text=True)
                out = run(*map(str, agent), "--node-id", "a", script) + other.communicate(timeout=60)[0]
                halves.sendall(b"TP/1.1\r\nHost: server\r\n\r\n")
                assert halves.recv(12) == b"HTTP/1.1 200"
            told = run(programs / "rdzvctl", "--endpoint", f"127.0.0.1:{port}", "status", "--json")
        finally:
            server.kill()
    assert {f"rank {rank} of 4" for rank in range(4)} <= set(re.findall(r"rank \d of \d", out))
    assert [attempt["phase"] for attempt in json.loads(told)["runs"]] == ["succeeded"]


def test_the_sdist_installs_as_well(built: list[Path], tmp_path: Path) -> None:
    own = install(python("3.11"), built[1], tmp_path)
    assert names_in_site_packages(own) == OURS
    assert run(own.parent / "node-agent", "--version").split()[-1] == rdzv_protocol.VERSION


def test_a_users_program_is_checked_against_our_types(built: list[Path], tmp_path: Path) -> None:
    own = install(python("3.11"), built[0], tmp_path / "venv")
    (tmp_path / "user.py").write_text(USER)
    run(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", own, "user.py", cwd=tmp_path)


# Licences.


def closure(names: Iterator[str], *extras: str) -> set[str]:
    """Return these packages and all that they need here, by their canonical names."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for text in distribution(name).requires or ():
            needed = Requirement(text)
            chosen = ("", *extras) if name == "rdzv-server" else ("",)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in chosen):
                waiting.append(needed.name)
    return found


SPDX = {
    "Apache 2.0": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD-3": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
}
"""Licences by the names that packages without an SPDX expression use."""


def _classified(metadata: PackageMetadata) -> str:
    """Return the licence from its trove classifier, for packages that give it nowhere else."""
    found = [line for line in metadata.get_all("Classifier") or () if line.startswith("License :: OSI Approved :: ")]
    return found[0].rpartition(" :: ")[2].removesuffix(" License") if found else ""


def test_the_licences_match_the_packages() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| (\S.*?) \|", (ROOT / "docs/reference/licences.md").read_text(), re.M)
    told = dict(rows[1:])
    for name in closure(iter(["rdzv-server"]), "etcd", "ctl", "hang", "otel", "torchx") - {"rdzv-server"}:
        metadata = distribution(name).metadata
        licence = metadata.get("License-Expression") or metadata.get("License") or _classified(metadata)
        assert told.get(name) == SPDX.get(licence, licence), name
