"""`rdzvctl`: mistakes in a command line, servers that cannot be reached, tokens and TLS."""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words import flags as flag_words
from rdzv_protocol.words import tls as tls_words

from rdzv_server.auth.authorization import Action
from rdzv_server.words import auth
from rdzvctl import words as ctl
from tests.support.certificates import Authority
from tests.support.cluster import PATIENT, Cluster
from tests.support.programs import PATIENCE_S, Program, Server
from tests.support.rdzvctl import RDZVCTL, environment, rdzvctl

REFUSED = os.strerror(errno.ECONNREFUSED).lower()


async def test_a_misspelt_run_and_a_misspelt_command_and_limits_in_the_wrong_order(cluster: Cluster) -> None:
    await cluster.nodes("a", "--run-id", "training", nproc=1)
    done = await rdzvctl("why", "trianing", endpoint=cluster.endpoint)
    assert done.code == ExitCode.FAILED
    assert done.err == [
        f"rdzvctl: error: {ctl.runs.no_such_run('trianing', ['training'])}", f"  {ctl.runs.known_runs(['training'], 0)}"
    ]  # fmt: skip
    done = await rdzvctl("stauts")
    assert done.code == ExitCode.BAD_INPUT and ctl.command_line.no_command("stauts", ["status"]) in done.err[0]
    done = await rdzvctl("--endpiont", cluster.endpoint, "status")
    assert done.code == ExitCode.BAD_INPUT and ctl.command_line.no_flag("--endpiont", ["--endpoint"]) in done.err[0]
    done = await rdzvctl("stop", "training", "other", endpoint=cluster.endpoint)
    assert done.code == ExitCode.BAD_INPUT
    assert done.err == [
        f"rdzvctl: error: {ctl.command_line.see_help(ctl.command_line.surplus(['other']), 'rdzvctl stop')}"
    ]
    done = await rdzvctl("stop", "--resaon", "why", endpoint=cluster.endpoint)
    assert ctl.command_line.see_help(ctl.command_line.no_flag("--resaon", ["--reason"]), "rdzvctl stop") in done.err[0]
    done = await rdzvctl("cordon", "a", "--yes", endpoint=cluster.endpoint)
    assert done.code == ExitCode.BAD_INPUT and ctl.command_line.asks_nothing("--yes", "rdzvctl cordon") in done.err[0]
    for choice, code in {"hugn": ExitCode.BAD_INPUT, "trouble": 0, "last-restart-spent": 0}.items():
        done = await rdzvctl("runs", "--health", choice, endpoint=cluster.endpoint)
        assert (done.code, "--health" in "".join(done.err)) == (code, code != 0)
    done = await rdzvctl("resize", "training", "3:1", endpoint=cluster.endpoint)
    assert done.code == ExitCode.BAD_INPUT and flag_words.min_above_max("3:1", 3, 1) in done.err[0]


async def test_logs_without_a_rank_names_the_ranks_of_the_run(cluster: Cluster) -> None:
    await cluster.nodes("a", "--run-id", "r 1", nproc=2)
    done = await rdzvctl("--endpoint", cluster.endpoint, "logs", "r 1")
    needs_rank = ctl.logs.needs_rank("r 1").replace("rdzvctl", f"rdzvctl --endpoint {cluster.endpoint}")
    assert done.code == ExitCode.BAD_INPUT
    assert done.err == [f"rdzvctl: error: {needs_rank}", f"  {ctl.logs.ranks('r 1', 1)}"]
    for arguments in (["r 1", "one"], ["r 1", "-1"], ["-1"]):
        done = await rdzvctl("logs", *arguments, endpoint=cluster.endpoint)
        assert done.code == ExitCode.BAD_INPUT and ctl.command_line.not_whole(arguments[-1]) in done.err[0]
    done = await rdzvctl("logs", "r 2", endpoint=cluster.endpoint)
    assert done.code == ExitCode.FAILED and ctl.runs.no_such_run("r 2", ["r 1"]) in done.err[0]


async def test_an_absent_server_is_reported(unused_tcp_port: int) -> None:
    at = f"127.0.0.1:{unused_tcp_port}"
    done = await rdzvctl("status", "--endpoint", f"{at},nonexistent.invalid:1")
    assert done.code == ExitCode.START_AGAIN
    failures = {at: REFUSED, "nonexistent.invalid:1": ctl.connection.no_host("")}
    assert done.err[0].startswith(f"rdzvctl: error: {ctl.connection.no_server_answers(failures)}")
    assert done.err[1:] == [f"  {ctl.connection.asked_because('--endpoint')}", f"  {ctl.connection.IS_IT_RUNNING}"]
    done = await rdzvctl("status", "--endpoint", "nonexistent.invalid:1")
    assert done.code == ExitCode.START_AGAIN and done.err[-1] == f"  {ctl.connection.CHECK_NAME}"


async def test_the_port_of_an_agents_metrics(cluster: Cluster, unused_tcp_port: int) -> None:
    await cluster.node("a", *PATIENT, "--metrics-port", str(unused_tcp_port), nproc=1)
    workers = await cluster.hub.group(1)
    done = await rdzvctl("why", endpoint=f"127.0.0.1:{unused_tcp_port}")
    assert done.code == ExitCode.START_AGAIN
    assert done.err[0].endswith(f":{unused_tcp_port}: {ctl.connection.no_server(ctl.connection.AN_AGENTS_METRICS)}")
    assert done.err[-1] == f"  {ctl.connection.NAME_ITS_PORT}"
    await cluster.finish(workers)


@pytest.mark.parametrize(
    ("way", "source"),
    [("flag", "--token-file"), ("variable", "RDZV_TOKEN_FILE"), ("context", "context lab of {folder}/config.toml")],
)
async def test_a_token_file_that_is_missing(way: str, source: str, tmp_path: Path) -> None:
    """The message names the source of the path, and says what to do."""
    gone, config = tmp_path / "gone.token", tmp_path / "config.toml"
    config.write_text(f'current = "lab"\n[contexts.lab]\nendpoint = "127.0.0.1:1"\ntoken_file = "{gone}"\n')
    env = {"RDZV_CONFIG": str(config)} | ({"RDZV_TOKEN_FILE": str(gone)} if way == "variable" else {})
    words = {"flag": ("--token-file", str(gone)), "variable": (), "context": ()}[way]
    place = () if way == "context" else ("--endpoint", "127.0.0.1:1")
    done = await rdzvctl(*place, *words, "status", env=env)
    why = flag_words.unreadable_token(str(gone), os.strerror(errno.ENOENT))
    assert done.code == ExitCode.BAD_INPUT
    assert done.err == [
        f"rdzvctl: error: {ctl.connection.unreadable_token(why, source.format(folder=tmp_path))}",
        f"  {ctl.connection.PUT_TOKEN_THERE}",
    ]


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Run a program that gives this answer to every request. The value is its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield "{}:{}".format(*server.sockets[0].getsockname())


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"HTTP/1.1 404 Not Found\r\n\r\n", b"",
     b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 502 Bad Gateway\r\n\r\n{}"],
    ids=["ssh", "a page", "not found", "nothing", "half an answer", "a proxy"],
)  # fmt: skip
async def test_rdzvctl_reports_another_program_at_the_endpoint(answer: bytes) -> None:
    async with answering(answer) as at:
        for words in (("status",), ("stop", "r", "--timeout", "0")):
            done = await rdzvctl(*words, endpoint=at)
            assert done.code in (ExitCode.START_AGAIN, ExitCode.FAILED)
            assert done.err[0].startswith("rdzvctl: error: ") and at in done.err[0]


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"


@pytest.mark.parametrize(
    "answer",
    [NOT_FOUND + b"\r\n404 page not found\n", NOT_FOUND + b"\r\n404 Not Found\n",
     NOT_FOUND + b"Server: Python/3.12 aiohttp/3.10\r\n\r\n404: Not Found", b"HTTP/1.1 404 Not Found\r\n\r\n"],
    ids=["Go", "Go, other words", "aiohttp", "no body"],
)  # fmt: skip
async def test_another_programs_404_in_plain_text_is_not_taken_for_an_older_servers(answer: bytes) -> None:
    async with answering(answer) as at:
        done = await rdzvctl("runs", endpoint=at)
    assert done.code == ExitCode.START_AGAIN
    assert (
        ctl.connection.no_server(ctl.connection.other_status(404)) in done.err[0]
        and ctl.connection.NAME_ITS_PORT in done.err[-1]
    )


@pytest.mark.parametrize("program", ["rdzv-server", "nginx/1.24.0"], ids=["directly", "through nginx"])
async def test_a_server_of_another_build_that_does_not_know_a_request(cluster: Cluster, program: str) -> None:
    """The server's own answer to an unknown path. A proxy replaces the program's name in it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.server.port)
    writer.write(b"GET /v1/unknown HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    assert b"\r\nServer: rdzv-server\r\n" in answer
    async with answering(answer.replace(b"Server: rdzv-server", b"Server: " + program.encode())) as at:
        done = await rdzvctl("runs", endpoint=at)
    assert done.code == ExitCode.FAILED and ctl.connection.unknown_request(at) in done.err[0]


async def test_a_reader_that_disconnects(cluster: Cluster) -> None:
    """`rdzvctl runs | true`"""
    ours, theirs = os.pipe()
    os.close(ours)
    process = await asyncio.create_subprocess_exec(
        *RDZVCTL,
        "runs",
        env={**os.environ, **environment(cluster.endpoint)},
        stdout=theirs,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(theirs)
    _, err = await process.communicate()
    assert (process.returncode, err) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize(
    "words",
    [
        ("runs",), ("--json", "runs"), ("events", "training"), ("--json", "events", "training", "--follow"),
        ("bundle", "training", "-o", "-"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_a_full_disk_behind_stdout(cluster: Cluster, words: tuple[str, ...]) -> None:
    """`rdzvctl runs > FILE`"""
    await cluster.nodes("a", "--run-id", "training", nproc=1)
    code, err = await redirected(cluster, 'exec "$@" > /dev/full', *words)
    assert (code, err) == (
        ExitCode.FAILED, f"rdzvctl: error: {flag_words.cannot_write(os.strerror(errno.ENOSPC))}\n"
    )  # fmt: skip


async def test_closed_standard_streams_change_nothing(cluster: Cluster) -> None:
    """`rdzvctl cordon NODE >&- 2>&-`, as some services start their commands"""
    await cluster.nodes("a", "--run-id", "training", nproc=1)
    assert await redirected(cluster, 'exec "$@" >&-', "cordon", "a") == (0, "")
    assert (await cluster.servers[-1].status())["server"]["cordons"]
    assert await redirected(cluster, 'exec "$@" >&-', "stop", "unknown") == (
        ExitCode.FAILED, "\n".join([
            f"rdzvctl: error: {ctl.runs.no_such_run('unknown', ['training'])}",
            f"  {ctl.runs.known_runs(['training'], 0)}\n",
        ]),
    )  # fmt: skip
    both = 'out=$("$@" 2>&-); [ "$out" = "" ]'  # nothing for people goes to stdout, which may be JSON
    assert await redirected(cluster, both, "--json", "stop", "unknown") == (0, "")


async def redirected(cluster: Cluster, script: str, *words: str) -> tuple[int, str]:
    """Run a command as `"$@"` of a shell script. Return the script's exit code, and its stderr."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, "sh", *RDZVCTL, *words, env={**os.environ, **environment(cluster.endpoint)},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err.decode()


# Tokens and TLS.


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    """Files with a token each, by role."""
    files = {role: tmp_path / f"{role}.token" for role in ("agents", "read", "admin")}
    for role, file in files.items():
        file.write_text(f"{role}-0123456789abcdef0123456789\n")
        file.chmod(0o600)
    return {role: str(file) for role, file in files.items()}


async def test_tokens_and_tls(authority: Authority, tokens: dict[str, str], tmp_path: Path) -> None:
    """Each missing thing is reported, until none is missing."""
    pair, own = authority.issue("server"), authority.issue("operator", "operator")
    server = await Server.listen(
        "--tls-cert", pair.cert, "--tls-key", pair.key, "--tls-client-ca", authority.ca, "--token-file",
        tokens["agents"], "--read-token-file", tokens["read"], "--admin-token-file", tokens["admin"],
    )  # fmt: skip
    at = server.endpoint
    tls = ("--tls-ca", authority.ca, "--tls-cert", own.cert, "--tls-key", own.key)
    for flags, says in (
        ((), ctl.connection.speaks_tls(at)),
        (("--tls-ca", "system"), tls_words.other_authority("--tls-ca", "system")),
        (("--tls-ca", authority.ca), tls_words.asks_for_certificate("--tls-cert", "--tls-key")),
        (tls, ctl.connection.asks_for_token(at)),
        ((*tls, "--token-file", own.key), flag_words.no_token(own.key)),
    ):
        done = await rdzvctl("status", *flags, endpoint=at)
        assert done.code == (ExitCode.BAD_INPUT if own.key in says else ExitCode.REFUSED), done.err
        assert says in done.err[0]
    wrong = tmp_path / "wrong.token"
    wrong.write_text("wrong-0123456789abcdef0123456789\n")
    done = await rdzvctl("status", *tls, endpoint=at, env={"RDZV_TOKEN_FILE": str(wrong)})
    assert done.code == ExitCode.REFUSED and tls_words.wrong_token(at, str(wrong)) in done.err[0]
    assert (await rdzvctl("status", *tls, "--token-file", tokens["read"], endpoint=at)).code == 0

    env = {"RDZV_CONFIG": str(tmp_path / "config.toml")}
    await rdzvctl("config", "set-context", "lab", "--endpoint", at, *tls, "--token-file", tokens["admin"], env=env)
    assert f" at {at}: " in (await rdzvctl("status", env=env)).lines[0]
    assert not any("0123456789abcdef" in line for line in server.err)


async def test_a_token_and_an_authority_that_change_while_rdzvctl_watches(
    cluster: Cluster, authority: Authority, other_authority: Authority, tmp_path: Path
) -> None:
    """The agent reads its files again, too."""
    token = tmp_path / "agents.token"
    token.write_text("before-0123456789abcdef\n")
    pair = authority.issue("server")
    flags = ("--tls-cert", pair.cert, "--tls-key", pair.key, "--token-file", str(token))
    store = ("--store", f"sqlite:{tmp_path / 'runs.db'}")
    server = await cluster.serve(*flags, *store)
    own = ("--tls-ca", authority.ca, "--token-file", str(token))
    workers = await cluster.nodes("a", "--run-id", "r", *PATIENT, *own, nproc=1)
    command = (*RDZVCTL, "status", "--watch", "--timeout", "1", *own)
    watching = await Program.start(*command, env=environment(server.endpoint))
    await watching.line(ctl.runs.one_line("r", "running", ""))
    await server.end()
    await watching.line(REFUSED)
    other_authority.issue("server")
    authority.give_way(other_authority)
    token.write_text("after-0123456789abcdef\n")
    await cluster.serve(*flags, *store, port=server.port)
    await watching.line(ctl.servers.ANSWER_AGAIN)
    await cluster.finish(workers)
    watching.signal(signal.SIGINT)
    assert await watching.exit_code() == 128 + signal.SIGINT


async def test_a_client_that_may_read_may_not_act(hub: object, cluster: Cluster, tokens: dict[str, str]) -> None:
    await cluster.serve(
        "--token-file", tokens["agents"], "--read-token-file", tokens["read"], "--admin-token-file", tokens["admin"]
    )
    await cluster.nodes("a", "--run-id", "r", "--token-file", tokens["agents"], *PATIENT, nproc=1)
    done = await rdzvctl("stop", "r", "--token-file", tokens["read"], endpoint=cluster.endpoint)
    assert done.code == ExitCode.REFUSED and auth.role_lacks("read", Action.ACT.value, "admin") in done.err[0]
    assert (await rdzvctl("stop", "r", "--token-file", tokens["admin"], endpoint=cluster.endpoint)).code == 0
    assert await cluster.agents["a"].exit_code() == 1
