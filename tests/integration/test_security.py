"""Tokens in the real programs: which clients are let in, where no secret is found, and what a worker cannot do."""

import json
import re
import signal
from collections.abc import Mapping
from functools import partial
from math import inf
from pathlib import Path

import aiohttp
import msgpack
import pytest
from rdzv_protocol import actions, paths
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words import tls as tls_words

from node_agent import words
from rdzv_server.words import auth, losses
from tests.support.certificates import Authority
from tests.support.cluster import ALL_COME, Cluster
from tests.support.message_search import has_message, part, pattern
from tests.support.outages import REACHED
from tests.support.process_info import is_running, until
from tests.support.programs import PRYING_WORKER, Program, Server, refuses, start_agent
from tests.support.worker_hub import all_run, restart_count

LOOK, JOIN, STOP, LOGS = ("GET", paths.STATUS), ("POST", paths.JOIN), ("POST", actions.STOP.path), ("POST", paths.LOGS)
STACKS = ("POST", paths.STACKS)
SECRETS = {"agents": "aG3nt-5ecret", "readers": "r3ad-5ecret", "admins": "adm1n-5ecret"}
HOSTED = ("--rdzv-backend", "c10d", "--nnodes", "1:2", "--last-call-timeout", "0")
FLAGS = {"agents": "--token-file", "readers": "--read-token-file", "admins": "--admin-token-file"}


def token_files(folder: Path, **contents: str) -> dict[str, str]:
    """Return files with tokens, by the name of the clients that use them."""
    found = {}
    for name, content in (contents or SECRETS).items():
        path = folder / f"{name}.token"
        path.write_text(f"{content}\n")
        path.chmod(0o600)
        found[name] = str(path)
    return found


def flags(files: Mapping[str, str]) -> list[str]:
    return [word for name, path in files.items() for word in (FLAGS[name], path)]


# Access.


async def test_each_token_allows_the_actions_of_its_role(cluster: Cluster, tmp_path: Path) -> None:
    server = await cluster.serve(*flags(token_files(tmp_path)))

    async def statuses(token: str | None) -> list[int]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        found = []
        for method, path in (LOOK, JOIN, STOP, LOGS, STACKS, ("GET", paths.METRICS), ("GET", paths.HEALTHZ)):
            headers["Content-Type"] = paths.MEDIA_TYPE
            async with session.request(method, path, headers=headers, data=b"\x80") as answer:
                found.append(answer.status)
        return found

    async with aiohttp.ClientSession(f"http://{server.endpoint}") as session:
        assert await statuses(SECRETS["agents"]) == [200, 400, 403, 403, 403, 200, 200], "an empty message is none"
        assert await statuses(SECRETS["readers"]) == [200, 403, 403, 403, 403, 200, 200]
        assert await statuses(SECRETS["admins"]) == [200, 400, 400, 400, 400, 200, 200]
        assert await statuses(None) == await statuses("guess") == [401, 401, 401, 401, 401, 401, 200]


async def test_teams_share_a_server(cluster: Cluster, tmp_path: Path) -> None:
    files = token_files(tmp_path, agents="# two teams\nours team-a-* 1\ntheirs team-b-*", a="ours")
    await cluster.serve("--token-file", files["agents"])
    workers = await cluster.nodes("a", "--run-id", "team-a-1", "--token-file", files["a"])
    other = await start_agent(
        "--endpoint", cluster.server.endpoint, "--run-id", "team-b-1", "--token-file", files["a"]
    )  # fmt: skip
    await refuses(other, auth.not_for_run(["team-a-*"], "team-b-1"), code=ExitCode.REFUSED)
    third = await start_agent("--endpoint", cluster.server.endpoint, "--run-id", "team-a-2", "--token-file", files["a"])
    await third.line(auth.too_many_runs(1, "team-a-2"))
    for token, shown in (("ours", ["team-a-1"]), ("theirs", [])):
        async with (
            aiohttp.ClientSession(f"http://{cluster.server.endpoint}") as session,
            session.get(paths.STATUS, headers={"Authorization": f"Bearer {token}"}) as answer,
        ):
            assert [run["run_id"] for run in (await answer.json())["runs"]] == shown
    await cluster.finish(workers)


async def test_tokens_are_replaced_while_a_run_continues(cluster: Cluster, tmp_path: Path) -> None:
    """First the server's file changes, which is the wrong order: the agent is kept out, while its workers run."""
    servers, agents = tmp_path / "server", tmp_path / "agents"
    servers.mkdir()
    agents.mkdir()
    server = await cluster.serve(*flags(token_files(servers, agents="old")))
    first = await cluster.nodes("a", "--max-restarts", "1", *flags(token_files(agents, agents="old")))
    token_files(servers, agents="new")
    server.signal(signal.SIGHUP)
    lost = await cluster.agents["a"].line(pattern(words.connection.server_lost, has_workers=True, longest_s=inf))
    assert tls_words.wrong_token(server.endpoint, str(agents / "agents.token")) in lost["failure"]
    assert all_run(first)
    token_files(agents, agents="new")
    await cluster.agents["a"].line(REACHED)
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    assert second[0].env["TORCHELASTIC_RESTART_COUNT"] == "1"
    await cluster.finish(second)


def has_renewed(server: Server, times: int) -> bool:
    return sum(auth.RENEWED in line for line in server.err) == times


async def test_a_token_that_both_files_know_meanwhile_is_replaced_without_a_restart(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The order that the page about tokens describes."""
    files, agents = tmp_path / "server", tmp_path / "agents"
    files.mkdir()
    agents.mkdir()
    server = await cluster.serve(*flags(token_files(files, agents="old")))
    flags_of_agent = flags(token_files(agents, agents="old"))
    first = await cluster.nodes("ab", *ALL_COME, "--nnodes", "2", "--max-restarts", "1", *flags_of_agent)
    for step, (of_server, of_agents) in enumerate((("old\nnew", "old"), ("old\nnew", "new"), ("new", "new")), 1):
        token_files(agents, agents=of_agents)
        token_files(files, agents=of_server)
        server.signal(signal.SIGHUP)
        await until(partial(has_renewed, server, step))
    first[0].order_exit(3)
    second = await cluster.hub.group(4)
    assert restart_count(second) == 1, "these are the next workers: no token has restarted the first ones"
    await cluster.finish(second)


async def test_a_node_that_gets_the_new_token_later_than_a_lease_after_the_others_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    files, agents = tmp_path / "server", {name: tmp_path / name for name in "ab"}
    for folder in (files, *agents.values()):
        folder.mkdir()
    server = await cluster.serve(*flags(token_files(files, agents="old")))
    for name, folder in agents.items():
        of_agent = flags(token_files(folder, agents="old"))
        await cluster.node(name, *ALL_COME, "--nnodes", "2", "--lease", "2", "--max-restarts", "0", *of_agent)
    of_b = [worker for worker in await cluster.hub.group(4) if worker.agent_pid == cluster.agents["b"].pid]
    token_files(files, agents="new")
    token_files(agents["a"], agents="new")
    server.signal(signal.SIGHUP)
    await server.line(part(losses.lost, node_id="b", cause=losses.not_heard(2)))
    assert all_run(of_b)
    token_files(agents["b"], agents="new")
    second = await cluster.hub.group(4)
    assert restart_count(second) == 0, "the restart is free"
    await cluster.finish(second)


async def test_a_server_that_listens_beyond_this_host_warns() -> None:
    command = [word for word in Server.command() if word not in ("--host", "127.0.0.1")]
    server = await Program.start(*command)
    await server.line(auth.OPEN)


# Where no secret is found.


def private_lines(key: str) -> list[str]:
    return [line for line in Path(key).read_text().splitlines() if len(line) > 40]


def contents(folder: Path, pattern: str) -> list[str]:
    return [path.read_bytes().decode("latin-1") for path in folder.glob(pattern)]


def of_process(pid: int) -> str:
    folder = Path(f"/proc/{pid}")
    return "".join((folder / name).read_bytes().decode("latin-1") for name in ("cmdline", "environ"))


async def misplaced(server: Server, authority: Authority, node: tuple[str, str]) -> list[str]:
    """Ask for the status with the tokens in wrong places. Return what the server answers."""
    context = authority.credentials(node).context()
    token = SECRETS["admins"]
    bodies = []
    status = (paths.STATUS, {"Authorization": f"Bearer {SECRETS['readers']}"})
    async with aiohttp.ClientSession(
        f"https://{server.endpoint}", connector=aiohttp.TCPConnector(ssl=context)
    ) as session:
        for path, given in (
            status,
            (f"{paths.STATUS}?token={token}", {}),
            (paths.STATUS, {"Authorization": token}),
            (paths.STATUS, {"Authorization": f"Basic {token}"}),
            (paths.STATUS, {"X-Token": token, "Cookie": f"token={token}"}),
            (paths.STATUS, {"Authorization": f"Bearer {token}, Bearer {token}"}),
            (paths.JOIN, {"Authorization": f"Bearer {token}"}),
        ):
            body, headers = msgpack.packb({"run_id": 1}), {**given, "Content-Type": paths.MEDIA_TYPE}
            async with session.request("POST" if path == paths.JOIN else "GET", path, headers=headers, data=body) as a:
                assert a.status == (200 if (path, given) == status else 400 if path == paths.JOIN else 401)
                bodies.append((await a.read()).decode("latin-1"))
    return bodies


async def test_no_output_or_file_contains_a_secret(cluster: Cluster, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files, store = token_files(tmp_path), tmp_path / "runs.db"
    shown, node = authority.issue("server"), authority.issue("node", "node")
    server = await cluster.serve(
        *flags(files), "--store", f"sqlite:{store}", "--tls-cert", shown.cert, "--tls-key", shown.key,
        "--tls-client-ca", authority.ca, is_forked=False,
    )  # fmt: skip
    cluster.has_forked_agents = False
    own = {"token-file": files["agents"], "tls-ca": authority.ca, "tls-cert": node.cert, "tls-key": node.key}
    by_flag = (word for name, path in own.items() for word in (f"--{name}", path))
    await cluster.node("a", "--nnodes", "2", "--max-restarts", "1", *by_flag)
    by_variable = {f"PET_{name.upper().replace('-', '_')}": path for name, path in own.items()}
    await cluster.node("b", "--nnodes", "2", "--max-restarts", "1", env=by_variable)
    first = await cluster.hub.group(4)
    first[0].order_exit(3)
    second = await cluster.hub.group(4)

    bodies = await misplaced(server, authority, node)
    programs = [server, *cluster.agents.values()]
    processes = [of_process(pid) for pid in (*(each.pid for each in programs), *(worker.pid for worker in second))]
    assert str(store) in processes[0], "the server's own command line"
    await cluster.finish(second)
    await server.end()
    found = {
        "what the server answers": bodies,
        "command lines and environments": processes,
        "workers' environments": [json.dumps(dict(worker.env)) for worker in cluster.hub.all],
        "consoles and logs": ["\n".join([*each.out, *each.err]) for each in programs],
        "state": contents(tmp_path, "runs.db*"),
    }
    assert all(texts and any(texts) for texts in found.values())
    for secret in (*SECRETS.values(), *private_lines(shown.key), *private_lines(node.key)):
        for where, texts in found.items():
            assert not any(secret in text for text in texts), where


# Limits of a worker.


async def test_a_worker_cannot_act_on_any_run_with_what_it_sees(cluster: Cluster, tmp_path: Path) -> None:
    cluster.script, cluster.has_forked_agents = PRYING_WORKER, False
    files = token_files(tmp_path)
    await cluster.serve(*flags(files))
    victims = await cluster.nodes("a", "--run-id", "theirs", "--token-file", files["agents"], nproc=1)
    (worker,) = await cluster.nodes("b", "--run-id", "ours", "--token-file", files["agents"], nproc=1)
    tried = json.loads(await worker.tell(f"attack {cluster.server.endpoint}"))
    assert files["agents"] in tried, "it looks well enough to find the file's name"
    assert {status for statuses in tried.values() for status in statuses} <= {401, 429}
    assert all_run(victims)
    await cluster.finish([*victims, worker])


STREAMS = {0: r"/dev/null", 1: r"pipe:\[\d+\]|/.*", 2: r"pipe:\[\d+\]|/.*", 3: r"socket:\[\d+\]"}
"""Files that a worker has open: its streams, and the connection to the test's hub."""


async def test_the_page_of_a_standalone_run_only_shows(cluster: Cluster) -> None:
    """Every user of the machine can reach it."""
    agent = await cluster.agent("a", "--standalone")
    url = (await agent.line(pattern(words.progress.status_page)))["url"]
    (worker,) = await cluster.hub.group(1)
    async with aiohttp.ClientSession(url) as session:
        async with session.get(paths.STATUS) as answer:
            (run,) = (await answer.json())["runs"]
        leave = {"run_id": run["run_id"], "agent_id": run["nodes"][0]["agent_id"], "reason": "SIGTERM"}
        for path, body in ((STOP[1], json.dumps(leave)), (paths.LEAVE, msgpack.packb(leave))):
            async with session.post(path, data=body, headers={"Content-Type": paths.MEDIA_TYPE}) as answer:
                assert answer.status == 403 and b"read-only" in await answer.read()
    assert is_running(worker.pid)
    await cluster.finish([worker])


async def test_a_standalone_run_may_have_no_page(cluster: Cluster) -> None:
    agent = await cluster.agent("a", "--standalone", "--no-status-page")
    (worker,) = await cluster.hub.group(1)
    await cluster.finish([worker])
    assert not has_message(agent.err, words.progress.status_page)


def listening_sockets() -> dict[str, list[str]]:
    """Return address and port of this machine's listeners, in hexadecimal, by their name as `links` returns it."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {f"socket:[{row[9]}]": row[1].split(":") for row in rows if row[3] == "0A"}


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
@pytest.mark.parametrize(("flag", "nnodes"), [("--endpoint", "1:2"), ("--rdzv-endpoint", "1")])
async def test_a_server_hosted_at_loopback_serves_only_this_machine(
    cluster: Cluster, unused_tcp_port: int, host: str, flag: str, nnodes: str
) -> None:
    endpoint = f"[{host}]:{unused_tcp_port}" if ":" in host else f"{host}:{unused_tcp_port}"
    flags = ("--rdzv-backend", "c10d", "--nnodes", nnodes, "--last-call-timeout", "0", flag, endpoint)
    agent = await cluster.agent("a", *flags)
    await agent.line(pattern(words.hosting.hosting, is_for_this_machine=True))
    workers = await cluster.hub.group(1)
    listening = [address for address, port in listening_sockets().values() if port == f"{unused_tcp_port:04X}"]
    assert listening in (["0100007F"], ["0" * 24 + "01000000"])
    await cluster.finish(workers)


@pytest.mark.parametrize("where", ["at a server", "alone", "hosting"])
async def test_a_worker_inherits_only_its_streams(
    cluster: Cluster, tmp_path: Path, unused_tcp_port: int, where: str
) -> None:
    """Files are listed in a second round, when agent and server have opened all of their files."""
    cluster.script, cluster.has_forked_agents = PRYING_WORKER, False
    logs = ("--log-dir", str(tmp_path), "--tee", "3", "--max-restarts", "1", "--event-log-handler", "console")
    files = token_files(tmp_path)
    if where == "at a server":
        await cluster.serve("--token-file", files["agents"])
        first = await cluster.nodes("a", *logs, "--token-file", files["agents"])
    else:
        place = ("--standalone",) if where == "alone" else (*HOSTED, "--endpoint", f"localhost:{unused_tcp_port}")
        agent = await cluster.agent("a", *place, *logs, "--nproc", "2")
        first = await cluster.hub.group(2)
        await agent.line(pattern(words.progress.status_page if where == "alone" else words.hosting.hosting))
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    for worker in second:
        files_open = json.loads(await worker.tell("files"))
        assert len(files_open) == len(STREAMS), files_open
        for descriptor, each in enumerate(files_open):
            assert re.fullmatch(f"{descriptor}: ({STREAMS[descriptor]})", each), files_open
    await cluster.finish(second)


async def test_a_server_that_an_agent_hosts_inherits_only_its_socket(cluster: Cluster, unused_tcp_port: int) -> None:
    agent = await cluster.agent("a", *HOSTED, "--endpoint", f"localhost:{unused_tcp_port}")
    pid = int((await agent.line(pattern(words.hosting.hosting, is_for_this_machine=True)))["pid"])
    workers = await cluster.hub.group(1)
    theirs = {link for link in links(agent.pid) if not link.startswith(("/dev/null", "anon_inode"))}
    shared = links(pid) & theirs
    assert not any(link.startswith("socket") for link in shared), "not even the agent's own connection to it"
    assert len(shared) <= 1, "the pipe of its log"
    await cluster.finish(workers)


def links(pid: int) -> set[str]:
    """Return the files that a process has open."""
    return {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
