"""A real container engine, Podman with runc, with its images and containers in a folder of its own.

    with container_engine() as engine:  # skips without Podman, root or other requirements
        engine.build("rdzv-server", "--target", "server")
        server = await engine.run("one", "--network", "none", "rdzv-server")
        await server.line("listening on")
        assert engine.inside("one", "rdzv-server", "--probe").returncode == 0

It does not use a registry: it makes the base image of deploy/docker from Debian's packages, under the name in the
Dockerfile. Containers that communicate share a network that has only loopback. Those made through `api` have networks
and published ports in a separate network namespace.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.programs import Program

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.13-slim"
RELEASES = {BASE: "trixie", "docker.io/library/python:3.14-slim": "forky"}
"""Debian's release with an image's Python, by image. Package lists of an unfinished release may be out of date."""
PYTHON = ("python3", "python3-venv", "python3-pip", "python-is-python3", "ca-certificates")
SYSTEMD = ("systemd", "systemd-sysv", "dbus")
UNPACKED = "docker-compose"
"""Package from which only the program is needed, without dependencies."""
UNPACK = (
    f'cd "$1/tmp" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get download --quiet --quiet {UNPACKED}'
    f' && dpkg-deb --extract {UNPACKED}_*.deb "$1" && rm {UNPACKED}_*.deb'
)
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
"""Certificates of this machine, which may reach the package index through a proxy with its own certificate."""
PROGRAMS = (
    "podman",
    "runc",
    "mmdebstrap",
    "conmon",
    "/usr/lib/podman/netavark",
    "/usr/lib/podman/aardvark-dns",
    "iptables",
)
SHARED = ("/run/containers", "/run/netns")
"""Folders that all engines of a machine share: their networks, and the process that resolves container names."""
NAME_SERVER = "run/containers/networks/aardvark-dns/aardvark.pid"
APART = (
    f"{' && '.join(f'mkdir -p {each} && mount -t tmpfs none {each}' for each in SHARED)} && echo ready && read -r end"
)
API = 'ip link set lo up && exec "$@"'
TIMEOUT_S = 300.0
PACKAGES_TIMEOUT_S = 600.0
"""Seconds to fetch and set up some hundred packages of a release."""
MOST_PROCESSES = 4096


class ContainerEngine:
    """Podman, used through its command, in a separate mount namespace that shares nothing with other engines."""

    def __init__(self) -> None:
        self._apart = subprocess.Popen(
            ("unshare", "--mount", "sh", "-c", APART), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._apart.stdout
        if self._apart.stdout.readline() != "ready\n":
            self._apart.communicate()
            pytest.skip("no mount namespace can be made here, which containers need")
        # Podman's longest path has 50 characters. Also, pytest could not remove what a killed run has left
        # mounted in a folder of pytest's.
        self._folder = Path(tempfile.mkdtemp(prefix="podman-"))
        places = ("--root", str(self._folder / "storage"), "--runroot", str(self._folder / "run"))
        self._command = ("nsenter", "--target", str(self._apart.pid), "--mount", "podman", *places)
        settings = self._folder / "containers.conf"
        settings.write_text(_settings())
        self._env = {**os.environ, "CONTAINERS_CONF": str(settings)}

    def call(
        self, *words: str, check: bool = True, stdin: int | None = None, within_s: float = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        command = (*self._command, *words)
        done = subprocess.run(
            command, env=self._env, stdin=stdin, capture_output=True, text=True, timeout=within_s, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def make_base(self, name: str, *packages: str, hooks: Sequence[str] = ()) -> None:
        """Make an image from Debian's packages for deploy/docker to start from: one of `RELEASES`."""
        hooks = ('rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED', f'cp {CERTIFICATES} "$1"{CERTIFICATES}', *hooks)
        self.make_system(name, RELEASES[name], *PYTHON, *packages, hooks=hooks)

    def make_system(self, name: str, release: str, *packages: str, hooks: Sequence[str] = ()) -> None:
        """Make an image of a release of Debian, with these packages and apt."""
        options = [f"--customize-hook={hook}" for hook in hooks]
        options += ['--aptopt=Acquire::Check-Valid-Until "false"', *(f"--include={package}" for package in packages)]
        command = ("mmdebstrap", "--quiet", "--variant=apt", *options, release)
        # It sends SIGHUP to its own process group at the end, so it needs its own group.
        made = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        with made:
            assert made.stdout
            words = ("import", "--change", "ENV UV_NATIVE_TLS=1", "-", name)
            self.call(*words, stdin=made.stdout.fileno(), check=False, within_s=PACKAGES_TIMEOUT_S)
        if made.returncode != 0:
            pytest.skip(f"Debian's packages cannot be fetched, of which {name} is made")

    def build(self, name: str, *options: str, dockerfile: Path = ROOT / "deploy/docker/Dockerfile") -> None:
        """Build an image from the root of the repository, in Docker's format: only that has health checks."""
        place = ("--pull=never", "--network", "host", "--format", "docker")
        self.call("build", *place, *options, "--file", str(dockerfile), "--tag", name, str(ROOT))

    async def run(self, name: str, *words: str) -> Program:
        """Start a container of this name with these arguments of `podman run`. The program ends with the container."""
        return await Program.start(*self._command, "run", "--name", name, *words, env=self._env)

    async def api(self) -> str:
        """Return the address of the engine's interface for Docker's programs, available until the end of the test."""
        self._end_name_server()
        address = f"unix://{self._folder}/api.socket"
        serve = (*self._command, "--log-level=info", "system", "service", "--time=0", address)
        service = await Program.start("unshare", "--net", "sh", "-c", API, "sh", *serve, env=self._env)
        await service.line("API service listening on")
        return address

    def _end_name_server(self) -> None:
        """End a name server from an earlier test, which Podman would take for that of the new network namespace.

        The file stays when the name server ends, and the pid in it may be another process's by now.
        """
        with suppress(FileNotFoundError, ProcessLookupError):
            pid = int(Path(f"/proc/{self._apart.pid}/root/{NAME_SERVER}").read_text())
            descriptor = os.pidfd_open(pid)
            try:
                if Path(f"/proc/{pid}/comm").read_text() == "aardvark-dns\n":
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)

    async def start_again(self, name: str) -> Program:
        """Start a container that has ended."""
        return await Program.start(*self._command, "start", "--attach", name, env=self._env)

    def inside(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        return self.call("exec", name, *words, check=False)

    def remove_all(self) -> None:
        """Remove all containers, first those that use another one's network."""
        for is_last in (False, True):
            self.call("rm", "--all", "--force", "--time", "0", "--volumes", check=is_last)

    def end(self) -> None:
        """Remove everything. Mounts end with their namespace."""
        self.remove_all()
        self.call("rmi", "--all", "--force")
        self._end_name_server()
        self._apart.communicate()
        shutil.rmtree(self._folder)


def _settings() -> str:
    """Return the limits of a container: not above this process's, because not every root may raise them.

    Docker Compose needs events, and networks in which containers find one another by name.
    """
    limits = {"nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "nproc": MOST_PROCESSES}
    return (
        f"[containers]\ndefault_ulimits = {json.dumps([f'{name}={most}:{most}' for name, most in limits.items()])}\n"
        '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        '[network]\nnetwork_backend = "netavark"\n'
    )


@contextmanager
def bare_engine() -> Iterator[ContainerEngine]:
    """Yield an engine without images. Its containers and images end with it."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)}: missing; tests/install-debian-packages.sh installs them")
    if os.geteuid() != 0:
        pytest.skip("containers of their own network need root")
    engine = ContainerEngine()
    try:
        yield engine
    finally:
        engine.end()


@contextmanager
def container_engine() -> Iterator[ContainerEngine]:
    """Yield an engine with the base image."""
    with bare_engine() as engine:
        engine.make_base(BASE, *SYSTEMD, hooks=[UNPACK])
        runs = engine.call("run", "--rm", "--network", "none", BASE, "true", check=False)
        if runs.returncode != 0:
            pytest.skip(f"no container can run here: {runs.stderr}")
        yield engine
