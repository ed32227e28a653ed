"""What the command line means."""

import os
import sys
from dataclasses import fields

import pytest

from node_agent import cli
from node_agent.config import AgentConfig
from node_agent.core.command import Command
from protocol.settings import RequestedSettings


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    monkeypatch.setattr(cli, "_run", no_agent)
    (tmp_path / "train.py").touch()


async def no_agent(*args):
    raise AssertionError("an agent was started")


def config(*argv: str) -> AgentConfig:
    return cli.make_config(cli.make_parser().parse_args(argv))


def endpoint(text: str) -> tuple[str, int]:
    return cli.make_parser().parse_args(["--endpoint", text, "train.py"]).endpoint


def complaint(capsys, *argv: str) -> str:
    """The one line with which a command line is refused."""
    with pytest.raises(SystemExit) as exit:
        cli.main(argv)
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("node-agent: error: ")


# Where each flag lands.

FLAGS = [
    ("nproc", 8, ["--nproc", "8"]),
    ("run_id", "nightly", ["--run-id", "nightly"]),
    ("explicit_run_id", True, ["--run-id", "nightly"]),
    ("rerun", True, ["--rerun"]),
    ("node_id", "n7", ["--node-id", "n7"]),
    ("role", "trainer", ["--role", "trainer"]),
    ("node_rank", 3, ["--node-rank", "3"]),
    ("local_addr", "10.0.0.7", ["--local-addr", "10.0.0.7"]),
    ("shutdown_timeout_s", 2.5, ["--shutdown-timeout", "2.5"]),
    ("connect_timeout_s", 7.0, ["--connect-timeout", "7"]),
    ("command", Command((sys.executable, "-u", "train.py")), []),
    ("settings", RequestedSettings(max_restarts=1), ["--max-restarts", "1"]),
    ("environment", None, []),
]
SETTINGS = [
    ("min_nodes", 2, ["--nnodes", "2:4"]),
    ("max_nodes", 4, ["--nnodes", "2:4"]),
    ("max_restarts", 3, ["--max-restarts", "3"]),
    ("join_timeout_s", 60.0, ["--join-timeout", "60"]),
    ("last_call_timeout_s", 0.0, ["--last-call-timeout", "0"]),
    ("lease_s", 4.0, ["--lease", "4"]),
    ("disconnect_grace_s", 0.5, ["--disconnect-grace", "0.5"]),
    ("scale_up", "manual", ["--scale-up", "manual"]),
    ("fatal_exit_codes", (2, -9), ["--fatal-exit-codes", "2,-9"]),
]
WITHOUT_A_FLAG = {"scale_up_window_s", "scale_up_cooldown_s"}


def test_every_setting_of_an_agent_has_a_case_here():
    assert {name for name, *_ in FLAGS} == {field.name for field in fields(AgentConfig)}
    assert {name for name, *_ in SETTINGS} | WITHOUT_A_FLAG == {field.name for field in fields(RequestedSettings)}


@pytest.mark.parametrize(("name", "value", "flags"), FLAGS[:-1], ids=lambda it: it if isinstance(it, str) else "")
def test_a_flag_lands_where_it_should(name, value, flags):
    assert getattr(config(*flags, "train.py"), name) == value


@pytest.mark.parametrize(("name", "value", "flags"), SETTINGS, ids=lambda it: it if isinstance(it, str) else "")
def test_a_setting_of_the_run_lands_where_it_should(name, value, flags):
    assert config(*flags, "train.py").settings == RequestedSettings(
        **({"min_nodes": 2, "max_nodes": 4} if "--nnodes" in flags else {name: value})
    )


def test_what_is_left_out_is_the_runs_own_or_torchruns_default():
    given = config("train.py")
    assert given.settings == RequestedSettings()
    assert (given.nproc, given.role, given.shutdown_timeout_s) == (1, "default", 30.0)
    assert (given.run_id, given.explicit_run_id) == ("none", False)
    assert given.node_id == os.uname().nodename
    assert (given.node_rank, given.local_addr) == (None, None)


def test_workers_inherit_the_agents_environment(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert config("train.py").environment["NCCL_DEBUG"] == "INFO"


def test_flags_after_the_script_are_the_scripts():
    given = config("--nproc", "2", "train.py", "--nproc", "9", "--", "-m")
    assert given.nproc == 2
    assert given.command.arguments == ("--nproc", "9", "--", "-m")


# Nodes and endpoints.


@pytest.mark.parametrize(("text", "nodes"), [("3", (3, 3)), ("1:4", (1, 4)), ("2:2", (2, 2))])
def test_nnodes(text, nodes):
    settings = config("--nnodes", text, "train.py").settings
    assert (settings.min_nodes, settings.max_nodes) == nodes


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("4:1", "MIN is above MAX; did you mean 1:4?"),
        ("0", "from 1 to 100000 nodes"),
        ("many", "neither a number of nodes nor MIN:MAX"),
        ("1:2:3", "neither a number of nodes nor MIN:MAX"),
    ],
)
def test_nnodes_that_make_no_sense(capsys, text, what):
    assert what in complaint(capsys, "--standalone", "--nnodes", text, "train.py")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("host:29400", ("host", 29400)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:29400", ("::1", 29400)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_an_endpoint(text, where):
    assert endpoint(text) == where


@pytest.mark.parametrize("text", ["host", "::1", "[::1]", "fe80::1:29400", "", "29400"])
def test_an_endpoint_without_a_port_is_explained(capsys, text):
    assert "has no port: give HOST:PORT" in complaint(capsys, "--endpoint", text, "train.py")


@pytest.mark.parametrize("text", [":29400", "host:", "host:0", "host:65536", "host:http", "host:²", "host:-1"])
def test_an_endpoint_with_a_port_that_is_none_is_explained(capsys, text):
    assert "is not HOST:PORT with a port from 1 to 65535" in complaint(capsys, "--endpoint", text, "train.py")


def test_without_an_endpoint_there_is_nothing_to_join(capsys):
    assert "--endpoint HOST:PORT is missing" in complaint(capsys, "train.py")


# Alone.


def test_alone_is_one_node_with_a_run_id_of_its_own():
    one, other = config("--standalone", "train.py"), config("--standalone", "--nnodes", "1", "train.py")
    assert (one.settings.min_nodes, one.settings.max_nodes) == (1, 1)
    assert one.run_id != other.run_id


def test_alone_is_not_for_several_nodes(capsys):
    assert "--standalone is for one node" in complaint(capsys, "--standalone", "--nnodes", "1:2", "train.py")


# What the workers execute.


def test_python_exec_names_another_interpreter(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert config("train.py", "--lr", "1").command == Command(("/opt/python", "-u", "train.py"), ("--lr", "1"))


def test_an_empty_python_exec_names_none(monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "")
    assert config("train.py").command.title == sys.executable


def test_a_module():
    assert config("-m", "package.train", "--lr", "1").command == Command(
        (sys.executable, "-u", "-m", "package.train"), ("--lr", "1")
    )


def test_a_program_is_looked_for_in_path(tmp_path, monkeypatch):
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert config("--no-python", "mine", "-x").command == Command((str(program),), ("-x",))


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["no.py"], "there is no script no.py (looked in "),
        (["--no-python", "no-such-program"], "there is no program no-such-program (looked in PATH and "),
        (["-m", "--no-python", "train"], "-m is for Python modules, --no-python for other programs"),
        ([], "the following arguments are required: SCRIPT, ..."),
    ],
)
def test_nothing_to_execute(capsys, argv, what):
    assert complaint(capsys, "--standalone", *argv).startswith(what)


# Values that make no sense.


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--nproc", "0"], "argument --nproc: a whole number from 1 to 4096, not '0'"),
        (["--nproc", "two"], "argument --nproc: a whole number from 1 to 4096, not 'two'"),
        (["--max-restarts", "-1"], "argument --max-restarts: a whole number from 0 to 10000000, not '-1'"),
        (["--lease", "soon"], "argument --lease: a number of seconds from 0.1 to 86400, not 'soon'"),
        (["--lease", "0"], "argument --lease: a number of seconds from 0.1 to 86400, not '0'"),
        (["--lease", "86401"], "argument --lease: a number of seconds from 0.1 to 86400, not '86401'"),
        (["--join-timeout", "nan"], "argument --join-timeout: a number of seconds from 0 to 1e+06, not 'nan'"),
        (["--join-timeout", "inf"], "argument --join-timeout: a number of seconds from 0 to 1e+06, not 'inf'"),
        (["--shutdown-timeout", "-1"], "argument --shutdown-timeout: a number of seconds from 0 to 1e+06, not '-1'"),
        (["--fatal-exit-codes", "1,,2"], "argument --fatal-exit-codes: a whole number from -255 to 255, not ''"),
        (["--fatal-exit-codes", "256"], "argument --fatal-exit-codes: a whole number from -255 to 255, not '256'"),
        (["--run-id", ""], "--run-id: 1 to 128 printable characters, not ''"),
        (["--node-id", "two\nlines"], "--node-id: 1 to 128 printable characters, not 'two\\nlines'"),
        (["--role", "x" * 129], "--role: 1 to 128 printable characters, not 'xxxxx"),
        (["--local-addr", "two\nlines"], "--local-addr: 1 to 128 printable characters, not 'two\\nlines'"),
        (["--token-file", "/no/such/file"], "--token-file /no/such/file: No such file or directory"),
    ],
)
def test_a_value_that_makes_no_sense(capsys, flags, what):
    assert complaint(capsys, "--standalone", *flags, "train.py").startswith(what)


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", "größe".encode(), b"\xff"])
def test_a_token_file_that_holds_no_token(capsys, tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    assert complaint(capsys, "--standalone", "--token-file", "token", "train.py").startswith("--token-file token: ")
