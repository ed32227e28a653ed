"""A real disk that hangs at every call: the run continues, an agent keeps its seat, a server names the reason."""

import asyncio
import os
import shutil
import signal
import sys
import urllib.error
from pathlib import Path

import pytest
from rdzv_protocol.words import disks as disk_words

from node_agent import words
from rdzv_server.words import auth as auth_words
from rdzv_server.words import service as server_words
from rdzv_server.words import storage as storage_words
from tests.support.certificates import Authority
from tests.support.cluster import Cluster
from tests.support.hanging_disk import Disk, why_no_fuse
from tests.support.message_search import part, pattern
from tests.support.process_info import children
from tests.support.programs import AGENT, WORKER, Program, Server, start_agent
from tests.support.tcp_proxy import TcpProxy
from tests.support.worker_hub import WorkerHub

pytestmark = pytest.mark.skipif(bool(why_no_fuse()), reason=f"no FUSE: {why_no_fuse()}")
LEASE_S = 3.0


async def agent_on(disk: Disk, cluster: Cluster) -> Program:
    """Start node b, whose agent has all of its files on the disk."""
    (disk.files / "tmp").mkdir()
    flags = (
        "--endpoint", cluster.endpoint, "--node-id", "b", "--nproc", "2", "--nnodes", "2", "--max-restarts", "1",
        "--lease", str(LEASE_S), "--shutdown-timeout", "5", "--last-call-timeout", "60", "-r", "1",
        "--log-dir", f"{disk.path}/logs", "--duplicate-stdout-filters", "apple", "--allow-log-reads",
        "--ready-file", f"{disk.path}/ready",
        "--preemption-file", f"{disk.path}/preempted", "--notice-timeout", "4", "--progress-timeout", "500",
    )  # fmt: skip
    environment = {
        **cluster.hub.env,
        "TMPDIR": f"{disk.path}/tmp",
        "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
        "TORCHELASTIC_ERROR_FILE": f"{disk.path}/errors/error.json",
        "TORCH_EXTENSIONS_DIR": f"{disk.path}/extensions",
    }
    program = await Program.start(*disk.command(sys.executable, *AGENT, *flags, WORKER), env=environment)
    cluster.agents["b"] = program
    return program


async def hangs(disk: Disk, program: Program) -> None:
    """Make the disk hang, and return when a process waits for it."""
    before = program.out.count("held")
    await asyncio.to_thread(disk.hang)
    while program.out.count("held") == before:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_node_whose_disk_hangs_keeps_its_seat_through_a_restart_and_ends_in_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It hangs longer than the lease. The other node is heard, so a silent one would be lost."""
    disk = Disk(tmp_path)
    agent = await agent_on(disk, cluster)
    flags = ("--nnodes", "2", "--max-restarts", "1", "--lease", str(LEASE_S), "--shutdown-timeout", "5")
    await cluster.node("a", *flags, "--last-call-timeout", "60", "--notice-timeout", "4")
    workers = await cluster.hub.group(4)
    await hangs(disk, agent)
    workers[0].order_exit(1)
    await agent.line(part(words.progress.stopping_workers, round_=1, reason=""))
    await agent.line("round 2")
    await asyncio.sleep(2 * LEASE_S)  # an agent that waited for the disk would be lost
    await asyncio.to_thread(disk.answer)
    workers = await cluster.hub.group(4)
    assert await cluster.restarts() == {"worker_failure": 1}
    await hangs(disk, agent)
    agents = [agent, cluster.agents["a"]]
    for worker in workers:
        worker.order_exit(0)
    for each in agents:
        assert await each.exit_code() == 0, each.err
    assert not any("lost" in line for line in cluster.server.err), cluster.server.err


def started(place: str, path: str, port: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a command that reads this path, and its environment."""
    program, _, name = place.partition(" ")
    if not name.startswith("--"):
        flags, environment = (), {"XDG_STATE_HOME": "", name: os.path.dirname(path)}
    else:
        flags, environment = (name, path, *(("--tls-key", path) if name == "--tls-cert" else ())), {}
    if program == "agent":
        script = path if name == "script" else WORKER
        if name == "PYTHON_EXEC":
            environment = {name: path}
        return (sys.executable, *AGENT, "--endpoint", "127.0.0.1:1", *flags, script), environment
    if program == "server":
        return (sys.executable, "-m", "rdzv_server", "--host", "127.0.0.1", "--port", str(port), *flags), environment
    endpoint = ("--endpoint", "127.0.0.1:1") if flags else ()  # else the one in the configuration
    return (sys.executable, "-m", "rdzvctl", *endpoint, *flags, "status"), environment


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("agent script", "disk/file"), ("agent TMPDIR", "disk"), ("agent PYTHON_EXEC", "disk/file"),
        ("agent --log-dir", "disk"), ("agent --token-file", "disk/file"), ("agent --preemption-file", "disk/."),
        ("agent --tls-ca", "disk/file"),
        ("server HOME", "disk/.local/state"), ("server --token-file", "disk/file"), ("server --event-log", "disk/file"),
        ("server --tls-cert", "disk/file"), ("rdzvctl XDG_CONFIG_HOME", "disk/rdzv/config.toml"),
        ("rdzvctl --token-file", "disk/file"), ("rdzvctl --tls-ca", "disk/file"),
    ],
)  # fmt: skip
async def test_a_program_whose_disk_hangs_at_its_start_names_the_path(
    tmp_path: Path, unused_tcp_port: int, place: str, named: str
) -> None:
    """Python does not run signal handlers meanwhile, so an agent cannot even be interrupted."""
    disk, go = Disk(tmp_path), tmp_path / "go"
    command, environment = started(place, f"{disk.path}/file", unused_tcp_port)
    waits = 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
    program = await Program.start(*disk.command("sh", "-c", waits, str(go), *command), env=environment)
    await asyncio.to_thread(disk.hang)
    await program.line("hangs")
    go.touch()
    found = await program.line(pattern(disk_words.hang))
    assert found["paths"] == f"{tmp_path}/{named}"
    (pid,) = children(program.pid)
    os.kill(pid, signal.SIGKILL)
    await program.end()


@pytest.mark.parametrize(
    ("flags", "code"), [((), 0), (("--exit-when-idle", "600"), 1)], ids=["a service", "the server of a job"]
)
async def test_a_server_whose_disk_hangs_at_its_start_logs_this_and_can_be_stopped(
    tmp_path: Path, flags: tuple[str, ...], code: int
) -> None:
    """The server of a job then knows of no success, and the job must not end as if it had one."""
    disk, go = Disk(tmp_path), tmp_path / "go"
    command = Server.command("--store", f"sqlite:{disk.path}/state.db", *flags)
    waits = 'until [ -e "$0" ]; do sleep 0.05; done; exec "$@"'
    server = await Program.start(*disk.command("sh", "-c", waits, str(go), *command))
    await asyncio.to_thread(disk.hang)
    await server.line("hangs")
    go.touch()
    await server.line(part(server_words.store_hangs))
    (pid,) = children(server.pid)
    os.kill(pid, signal.SIGTERM)
    assert await server.exit_code() == code


async def test_a_server_whose_disk_hangs_logs_this_and_can_be_stopped(hub: WorkerHub, tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    server = await Server.start(*disk.command(*Server.command("--store", f"sqlite:{disk.path}/state.db")))
    server.port = int((await server.line(r"listening on https?://127\.0\.0\.1:(\d+)"))[1])
    ends = ("--lease", str(LEASE_S), "--max-restarts", "1", "--shutdown-timeout", "5")
    agent = await start_agent("--endpoint", server.endpoint, "--node-id", "a", *ends, env=hub.env)
    (worker,) = await hub.group(1)
    await asyncio.to_thread(disk.hang)
    worker.kill()
    await server.line(part(server_words.store_hangs))
    await agent.line(part(server_words.store_hangs))
    with pytest.raises(urllib.error.HTTPError, match="503"):
        await server.get("/readyz")
    (pid,) = children(server.pid)
    os.kill(pid, signal.SIGTERM)
    assert await server.exit_code() == 0
    await server.line(part(storage_words.not_closed, path=f"{disk.path}/state.db"))
    await agent.end()


async def test_a_server_whose_files_hang_at_a_sighup_logs_this_and_continues(hub: WorkerHub, tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    tokens, secret = disk.files / "tokens", disk.files / "secret"
    for file in (tokens, secret):
        file.write_text("hush")
        file.chmod(0o600)
    flags = ("--token-file", f"{disk.path}/tokens", "--event-log", f"{disk.path}/events")
    webhook = ("--webhook", "http://127.0.0.1:1/", "--webhook-secret-file", f"{disk.path}/secret")
    server = await Server.start(*disk.command(*Server.command(*flags, *webhook)))
    server.port = int((await server.line(r"listening on https?://127\.0\.0\.1:(\d+)"))[1])
    ends = ("--lease", str(LEASE_S), "--max-restarts", "1", "--shutdown-timeout", "5", "--token-file", str(tokens))
    agent = await start_agent("--endpoint", server.endpoint, "--node-id", "a", *ends, env=hub.env)
    (worker,) = await hub.group(1)
    await asyncio.to_thread(disk.hang)
    (pid,) = children(server.pid)
    os.kill(pid, signal.SIGHUP)
    for name in ("tokens", "secret"):
        await server.line(part(server_words.files_hang, paths=[f"{disk.path}/{name}"]))
    worker.order_exit(1)
    (worker,) = await hub.group(1)
    await asyncio.to_thread(disk.answer)
    await server.line(auth_words.RENEWED)
    worker.order_exit(0)
    assert await agent.exit_code() == 0, agent.err


async def test_an_agent_whose_certificates_hang_connects_again_and_keeps_its_seat(
    hub: WorkerHub, authority: Authority, tmp_path: Path
) -> None:
    disk, pair = Disk(tmp_path), authority.issue("server")
    for path in (authority.ca, *authority.issue("node", "node")):
        shutil.copy(path, disk.files)
    server = await Server.start(*Server.command("--tls-cert", pair.cert, "--tls-key", pair.key))
    server.port = int((await server.line(r"listening on https?://127\.0\.0\.1:(\d+)"))[1])
    own = ("--tls-ca", "ca.pem", "--tls-cert", "node.pem", "--tls-key", "node.key")
    flags = tuple(f"{disk.path}/{each}" if "." in each else each for each in own)
    async with TcpProxy(server.endpoint) as proxy:
        ends = ("--endpoint", proxy.address, "--lease", str(LEASE_S), "--max-restarts", "1", "--shutdown-timeout", "5")
        command = disk.command(sys.executable, *AGENT, *ends, *flags, WORKER)
        agent = await Program.start(*command, env=hub.env)
        (worker,) = await hub.group(1)
        await asyncio.to_thread(disk.hang)
        await agent.line("hangs")
        await proxy.drop(1)
        await agent.line("held")
        worker.order_exit(1)
        (worker,) = await hub.group(1)
        worker.order_exit(0)
        assert await agent.exit_code() == 0, agent.err
    assert not any("lost" in line for line in server.err), server.err
