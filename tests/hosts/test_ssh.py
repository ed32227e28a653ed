"""The loop of docs/how-to/clusters.md that starts a run by ssh, unchanged, with a real sshd on each host."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.hosts.network import Network
from tests.support.process_info import until
from tests.support.programs import WORKER, Program
from tests.support.worker_hub import Worker, WorkerHub

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(shutil.which("sshd") is None, reason="openssh-server is missing"),
]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "clusters.md").read_text()
NODES = "ab"
CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PrintMotd no
PasswordAuthentication no
SetEnv PATH=/usr/bin:/bin TEST_WORKER_HUB={hub}
"""


class Office:
    """The machine `s` from which people start runs on the hosts a and b, as an async context manager."""

    def __init__(self, network: Network, hub: WorkerHub, folder: Path) -> None:
        self._network, self._hub, self._folder = network, hub, folder
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        self._path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    async def open(self) -> None:
        """Start sshd on each node, with keys that let us in. Its shells do not have our programs on PATH."""
        os.makedirs("/run/sshd", exist_ok=True)
        config = self._folder / "sshd_config"
        config.write_text(CONFIG.format(folder=self._folder, hub=self._hub.env["TEST_WORKER_HUB"]))
        for name in NODES:
            sshd = await self._network[name].start(Program, shutil.which("sshd") or "", "-D", "-e", "-f", str(config))
            await sshd.line("Server listening on 0.0.0.0")
        self.idle = self._network.processes()
        client = (
            f'exec {shutil.which("ssh")} -i user_key -o StrictHostKeyChecking=no -o UserKnownHostsFile=known "$@"\n'
        )
        (self._folder / "ssh").write_text(f"#!/bin/sh\n{client}")
        (self._folder / "ssh").chmod(0o755)

    async def launch(self) -> Program:
        """Run the loop, in a folder with the script and the list of hosts."""
        shutil.copy(WORKER, self._folder / "train.py")
        (self._folder / "hosts").write_text("".join(f"{self._network[name].address}\n" for name in NODES))
        block = re.search(r"^## Plain ssh\n.*?^```bash\n(.*?)^```", PAGE, re.M | re.S)
        assert block
        script = block[1].replace("SERVER:", f"{self._network['s'].address}:").replace("--nproc 8", "--nproc 1")
        (self._folder / "launch.sh").write_text(script)
        program = self._network["s"].namespace.command("bash", "launch.sh")
        return await Program.start(*program, env={"PATH": self._path}, cwd=self._folder)

    async def is_empty(self) -> None:
        """Return when every host has the same processes as at the start."""
        await until(lambda: self._network.processes() == self.idle)


@pytest.fixture
async def office(hub: WorkerHub, tmp_path: Path) -> AsyncIterator[Office]:
    async with Network("s" + NODES) as network:
        office = Office(network, hub, tmp_path)
        await office.open()
        yield office


async def started(office: Office, hub: WorkerHub) -> tuple[Program, list[Worker]]:
    loop = await office.launch()
    return loop, await hub.group(len(NODES))


@pytest.mark.parametrize("code", [0, 3], ids=["success", "failure"])
async def test_the_exit_code_over_ssh_is_the_runs_outcome(office: Office, hub: WorkerHub, code: int) -> None:
    loop, workers = await started(office, hub)
    for worker in workers:
        worker.order_exit(code)
    assert await loop.exit_code() == bool(code)
    await office.is_empty()


async def test_ctrl_c_ends_everything(office: Office, hub: WorkerHub) -> None:
    loop, workers = await started(office, hub)
    await workers[0].tell("daemon")
    os.killpg(loop.pid, signal.SIGINT)
    assert await loop.exit_code() == 130
    await office.is_empty()
    assert hub.survivors() == []
