"""A name of etcd's members, such as a Service of Kubernetes, that leads to other addresses once a member has gone."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.hosts.network import Network
from tests.support.etcd import need_etcd
from tests.support.programs import Program, ended_programs

pytestmark = pytest.mark.hosts

PATIENCE_S = 20.0
"""gRPC's own pause between two look-ups is 30 s."""
NAME = "members"
CLIENT = f"""
import asyncio
from rdzv_server.storage.base import StoreUnavailable
from rdzv_server.storage.etcd_client import EtcdClient

async def main():
    client = EtcdClient(["{NAME}:2379"])
    for turn in ("first", "second"):
        while True:
            try:
                await client.get(b"-")
                break
            except StoreUnavailable:
                await asyncio.sleep(0.05)
        print(turn, flush=True)
        await asyncio.to_thread(input)

asyncio.run(main())
"""


async def test_a_name_is_looked_up_again_soon_after_its_member_has_gone(tmp_path: Path) -> None:
    need_etcd()
    async with Network("abc") as network, ended_programs():

        async def etcd(host: str) -> Program:
            url = f"http://{network[host].address}:2379"
            folder = str(tmp_path / host)
            command = ("etcd", "--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url)
            return await network[host].start(Program, *command)

        def leads_to(host: str) -> None:
            network["a"].namespace.replace_file("hosts", f"{network[host].address} {NAME}\n")

        leads_to("b")
        first = await etcd("b")
        await etcd("c")
        command = network["a"].namespace.command(sys.executable, "-c", CLIENT)
        client = await Program.start(*command, stdin=asyncio.subprocess.PIPE)
        await client.line("first")
        leads_to("c")
        await first.kill()
        assert client.process.stdin
        client.process.stdin.write(b"\n")
        await client.line("second", PATIENCE_S)
