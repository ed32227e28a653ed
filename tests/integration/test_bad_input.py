"""Mistakes, and what a person sees: one line that says what to do, exit code 2, nothing left running."""

import errno
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from rdzv_protocol import paths
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words import flags as flag_words
from rdzv_protocol.words import tls as tls_words

from node_agent import words
from rdzv_server.words import admission, auth, startup
from rdzv_server.words import etcd as etcd_words
from rdzv_server.words import http as http_words
from tests.support.cluster import PATIENT, Cluster
from tests.support.etcd import need_aetcd
from tests.support.message_search import has_message, message_fields, pattern
from tests.support.programs import WORKER, Program, Server, refuses, start_agent

NOWHERE = ("--endpoint", "127.0.0.1:1")
NO_HOST = "no-such-host.invalid"
UNKNOWN_NAME = ("--endpoint", f"{NO_HOST}:29400")
OTHER_MACHINE = "224.0.0.1"
"""Address that is never this machine's, and to which the kernel refuses to connect."""


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((*NOWHERE, "--nnodes", "4:2"), flag_words.min_above_max("4:2", 4, 2)),
        ((*NOWHERE, "--nprocs=2"), "did you mean --nproc?"),
        ((*NOWHERE, "--tls-ca", "/nowhere"), "--tls-ca /nowhere: No such file or directory"),
        (("--standalone", "absent.py"), words.command.no_script("absent.py", os.getcwd())),
    ],
    ids=["a value", "an unknown flag", "a file", "no script"],
)
async def test_a_wrong_flag(flags: tuple[str, ...], says: str) -> None:
    await refuses(await start_agent(*flags), says)


@pytest.mark.parametrize(
    ("flags", "says"),
    [(NOWHERE, "(connect: 127.0.0.1: Connection refused)"), (UNKNOWN_NAME, words.connection.hint("name"))],
    ids=["nobody", "unknown-name"],
)
async def test_an_absent_server_is_reported(flags: tuple[str, ...], says: str) -> None:
    await refuses(await start_agent(*flags, "--connect-timeout", "0"), says, code=ExitCode.START_AGAIN)


# tests/unit/node_agent/cli and tests/unit/rdzv_server/test_cli.py test what the parsers refuse.
SERVER_FLAGS = {
    ("--port", "http"): startup.other_value(startup.A_PORT, "http"),
    ("--host", "198.51.100.7"): startup.cannot_listen("198.51.100.7", 0, os.strerror(errno.EADDRNOTAVAIL)),
    ("--host", NO_HOST): startup.cannot_listen(NO_HOST, 0, "Name or service not known"),
    ("--listen-fd", "99"): startup.bad_listen_fd(99, os.strerror(errno.EBADF)),
    ("--listen-fd", "0"): startup.bad_listen_fd(0, os.strerror(errno.ENOTSOCK)),
    ("--max-connections", "9999999"): "--max-connections 9999999: ",
    ("--token-file", "/nowhere"): auth.bad_token_file("--token-file", "/nowhere", os.strerror(errno.ENOENT)),
    ("--tls-cert", "/nowhere", "--tls-key", "/nowhere"): "--tls-cert /nowhere: No such file or directory",
    ("--store", "sqlite:"): "--store",
    ("--store", "postgres:x"): "--store",
    ("--store", "memory:x"): "--store",
    ("--store", ""): "--store",
    ("--store", "etcd://a:0"): etcd_words.no_member("etcd://a:0", "a:0"),
    ("--store", "etcd://a", "--etcd-ca", "/nowhere/ca"): tls_words.unreadable(
        "--etcd-ca", "/nowhere/ca", "No such file or directory"
    ),
}


@pytest.mark.parametrize(("flags", "says"), SERVER_FLAGS.items(), ids=map(" ".join, SERVER_FLAGS))
async def test_a_wrong_flag_of_the_server(flags: tuple[str, ...], says: str) -> None:
    if "etcd://" in "".join(flags):
        need_aetcd()
    server = await Program.start(*Server.command(*flags))
    await refuses(server, says)
    assert len(server.err) == 1


async def limited(files: int, flags: str) -> Program:
    """Return an agent that may open this number of files."""
    command = f"{sys.executable} -m node_agent --standalone {flags}"
    return await Program.start("bash", "-c", f"ulimit -n {files}; exec {command}")


@pytest.mark.parametrize("limit", [12, 23])
async def test_too_few_files_for_the_workers(limit: int) -> None:
    agent = await limited(limit, "--nproc 4 -t 0:3 --no-python true")
    await refuses(agent)
    needed = message_fields(agent.err[-1], words.plan.too_few_descriptors, limit=limit, workers=4)["needed"]
    assert 30 <= int(needed) < 40


@pytest.mark.parametrize(
    "flags", ["-t 3", "-r 3", "--duplicate-stdout-filters x --duplicate-stderr-filters x", "--preload json"]
)
async def test_an_agent_with_as_many_files_as_it_asks_for_runs(tmp_path: Path, flags: str) -> None:
    script = tmp_path / "train.py"
    script.touch()
    command = f"--nproc 8 --log-dir {tmp_path} {flags} {script}"
    needed = (await (await limited(12, command)).line(pattern(words.plan.too_few_descriptors, workers=8)))["needed"]
    agent = await limited(int(needed), command)
    assert await agent.exit_code() == 0, agent.err
    assert not has_message(agent.err, words.plan.too_few_descriptors), agent.err


async def test_another_program_listens_at_the_endpoint(unused_tcp_port: int) -> None:
    web = await Program.start(sys.executable, "-u", "-m", "http.server", "-b", "127.0.0.1", str(unused_tcp_port))
    await web.line("Serving HTTP on 127.0.0.1")
    agent = await start_agent("--endpoint", f"127.0.0.1:{unused_tcp_port}", "--connect-timeout", "0")
    what, todo = (
        f"(another program: {words.connection.other_program_answered(501)})",
        words.connection.hint("another program"),
    )
    await refuses(agent, what, todo, code=ExitCode.START_AGAIN)
    host = await start_agent("--nnodes", "2", "--node-rank", "0", "--master-port", str(unused_tcp_port))
    await refuses(host, words.connection.hint("port"), code=ExitCode.FAILED)


async def test_the_first_line_about_a_server_that_is_not_there_says_what_to_check() -> None:
    agent = await start_agent(*NOWHERE)
    await agent.line("127.0.0.1:1 .*refused")
    assert agent.err[-1].endswith(words.connection.hint("connect"))
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code() == ExitCode.START_AGAIN


async def test_a_master_addr_of_another_machine(unused_tcp_port: int) -> None:
    """Node rank 0 hosts the server. Its agent cannot reach it at the address that all nodes are given."""
    place = ("--master-addr", OTHER_MACHINE, "--master-port", str(unused_tcp_port))
    host = await start_agent("--nnodes", "2", "--node-rank", "0", *place, "--connect-timeout", "0")
    await refuses(host, f"(host: {OTHER_MACHINE}: ", words.connection.hint("host"), code=ExitCode.FAILED)


async def test_a_port_that_accepts_but_never_answers_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agent = await start_agent("--endpoint", f"127.0.0.1:{silent.getsockname()[1]}", "--connect-timeout", "0")
        what, todo = f"(HTTP: {words.connection.NO_ANSWER})", words.connection.hint("HTTP")
        await refuses(agent, what, todo, code=ExitCode.START_AGAIN)


INTERRUPTED = """
import importlib, os, signal, sys

def hook(event, args):
    if event == "import" and args[0] == module:
        os.kill(os.getpid(), getattr(signal, signum))

program, module, signum, *sys.argv[1:] = sys.argv[1:]
sys.addaudithook(hook)
sys.exit(importlib.import_module(program).main())
"""
"""Program that gets a signal just before it imports a module."""


@pytest.mark.parametrize(
    ("program", "module", "code"),
    [
        ("node_agent.__main__", "node_agent.cli.main", -signal.SIGINT),
        ("node_agent.__main__", "node_agent.agent", -signal.SIGINT),
        ("node_agent.launch", "node_agent.cli.main", -signal.SIGINT),
        ("rdzv_server.__main__", "rdzv_server.cli", ExitCode.FAILED),
        ("rdzvctl.__main__", "rdzvctl.cli", 128 + signal.SIGINT),
    ],
)
async def test_ctrl_c_while_a_program_is_imported(program: str, module: str, code: int) -> None:
    started = await Program.start(sys.executable, "-c", INTERRUPTED, program, module, "SIGINT", *NOWHERE, str(WORKER))
    assert await started.exit_code() == code
    assert started.err == []


SWALLOWED = """
import signal, sys

def interrupted(path):
    if path == sys.orig_argv[1]:
        signal.raise_signal(signal.SIGINT)
    raise ImportError

sys.path_hooks.insert(0, interrupted)
"""
"""A `sitecustomize` that sends SIGINT while the interpreter looks at the path of its program."""


async def test_ctrl_c_that_the_interpreter_swallows_in_its_own_start_ends_the_agent(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SWALLOWED)
    program = Path(sys.executable).with_name("node-agent")
    agent = await Program.start(sys.executable, str(program), *NOWHERE, str(WORKER), env={"PYTHONPATH": str(tmp_path)})
    assert await agent.exit_code() == -signal.SIGINT
    assert "KeyboardInterrupt" in agent.err[-1], "it is CPython's"


@pytest.mark.parametrize("flags", [(), ("--exit-with-run",)])
@pytest.mark.parametrize("module", ["node_agent.cli.main", "node_agent.cli.plan", "node_agent.agent"])
async def test_an_agent_that_is_told_to_leave_while_it_is_imported_asks_to_be_started_again(
    module: str, flags: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        flags = ("--endpoint", f"127.0.0.1:{server.getsockname()[1]}", *flags, str(WORKER))
        agent = await Program.start(sys.executable, "-c", INTERRUPTED, "node_agent.__main__", module, "SIGTERM", *flags)
        await agent.line(pattern(words.leaving.leaving("SIGTERM")))
        assert await agent.exit_code() == ExitCode.START_AGAIN
        with server.accept()[0] as connection:
            assert connection.recv(1 << 16).startswith(f"POST {paths.LEAVE} ".encode()), "it did not join"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("flags", [(), ("--exit-with-run",)])
async def test_an_agent_that_is_told_to_leave_as_it_joins_asks_to_be_started_again(
    flags: tuple[str, ...], signum: signal.Signals
) -> None:
    agent = await start_agent(*NOWHERE, "--run-id", "r", "--node-id", "a", *flags)
    await agent.line(pattern(words.progress.joining("r", NOWHERE[1], "a")))
    agent.signal(signum)
    await agent.line(pattern(words.leaving.leaving(signum.name)))
    assert await agent.exit_code() == ExitCode.START_AGAIN


async def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = await Server.start(sys.executable, "-m", "rdzv_server", "--host", "127.0.0.1", "--port", str(port))
        await refuses(server, startup.port_in_use(port))


async def test_an_agent_with_other_settings_than_the_runs(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--nnodes", "1", "--max-restarts", "1", *PATIENT)
    other = await cluster.node("b", "--nnodes", "3", "--max-restarts", "1")
    says = admission.other_settings("none", [flag_words.other_setting("--nnodes", "1", "3")])
    await refuses(other, says, code=ExitCode.REFUSED)
    del cluster.agents["b"]
    await cluster.server.line(re.escape(f"WARNING rdzv-server: {http_words.refused('127.0.0.1', says, 0)}"))
    await cluster.finish(workers)


async def test_a_node_rank_that_is_taken(cluster: Cluster) -> None:
    workers = await cluster.nodes("a", "--node-rank", "0", *PATIENT)
    other = await cluster.node("b", "--node-rank", "0")
    await refuses(other, "node a already has --node-rank 0 of run none", code=ExitCode.REFUSED)
    del cluster.agents["b"]
    await cluster.finish(workers)


async def test_two_users_without_run_ids_share_a_server_without_conflict(cluster: Cluster, tmp_path: Path) -> None:
    a = await cluster.nodes("a", *PATIENT)
    theirs, cluster.script = os.path.basename(cluster.script), shutil.copy(WORKER, tmp_path / "other.py")
    says = admission.other_program("none", theirs, "a", "other.py", "b")
    await refuses(await cluster.node("b", *PATIENT), says, code=ExitCode.REFUSED)
    cluster.script = shutil.copy(WORKER, tmp_path / "worker2.py")
    says = admission.not_wanted("none", 1, "c", "worker2.py", "nothing")
    await refuses(await cluster.node("c", *PATIENT), says, code=ExitCode.REFUSED)
    cluster.script = shutil.copy(__file__, tmp_path / theirs)  # another project's script
    says = admission.not_wanted("none", 1, "d", theirs, "command")
    await refuses(await cluster.node("d", *PATIENT), says, code=ExitCode.REFUSED)
    for name in "bcd":
        del cluster.agents[name]
    await cluster.finish(a)


async def test_nodes_whose_commands_differ_by_a_number_run_with_a_warning(cluster: Cluster, tmp_path: Path) -> None:
    a = await cluster.node("a", "--nnodes", "2", *PATIENT)
    await a.line("1 of 2 joined")
    cluster.script = shutil.copy(WORKER, tmp_path / "worker2.py")
    b = await cluster.node("b", "--nnodes", "2", *PATIENT)
    says = admission.other_command("b", "a")
    await b.line(f" node-agent: {says}$")
    await cluster.server.line(f"WARNING rdzv-server: run none round 1: {says}$")
    await cluster.finish(await cluster.hub.group(4))
    for lines in (a.err, b.err, cluster.server.err):
        assert sum(says in line for line in lines) == (lines is not a.err)


async def test_a_missing_or_wrong_token(tmp_path: Path) -> None:
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("secret\n")
    wrong.write_text("guess\n")
    server = await Server.listen("--token-file", str(token))
    at = server.endpoint
    unknown = tls_words.wrong_token(at, str(wrong))
    ways: list[tuple[tuple[str, ...], dict[str, str], str]] = [
        ((), {}, words.connection.asks_for_token(at, "--token-file")),
        (("--token-file", str(wrong)), {}, unknown),
        ((), {"PET_TOKEN_FILE": str(wrong)}, unknown),
    ]
    for flags, variables, says in ways * 2:
        await refuses(await start_agent("--endpoint", at, *flags, env=variables), says, code=ExitCode.REFUSED)
    assert len([line for line in server.err if "refused 127.0.0.1" in line]) == 2, "each once, however often it comes"
    welcome = await start_agent("--endpoint", server.endpoint, "--token-file", str(token), "--no-python", script="true")
    assert await welcome.exit_code() == 0
