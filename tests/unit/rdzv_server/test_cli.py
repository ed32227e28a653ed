"""The server's command line: every setting has a flag, and what makes no sense is said in one line."""

from dataclasses import fields

import pytest

from rdzv_server.cli import parse
from rdzv_server.config import ServerConfig

ETCD = ("--store", "etcd://a")


def test_without_flags_the_defaults_hold():
    assert parse([]) == ServerConfig()


def test_flags_fill_the_settings():
    flags = "--port 0 --retention 7 --allow-host a --allow-host b --max-runs 3 --store memory --tls-cert c --tls-key k"
    assert parse(flags.split()) == ServerConfig(
        port=0, retention_s=7.0, allow_host=["a", "b"], max_runs=3, store="memory", tls_cert="c", tls_key="k"
    )
    assert parse([*ETCD, "--leader-lease", "5", "--advertise", "[::1]:1"]).advertise == "[::1]:1"


def test_every_setting_is_explained(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    page = capsys.readouterr().out
    names = ["--" + field.name.removesuffix("_s").replace("_", "-") for field in fields(ServerConfig)]
    assert [name for name in names if f"\n  {name} " not in page] == []
    assert "{" not in page and "default: 29400; 0: a free one" in page


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--no-such-flag",), "unrecognized arguments: --no-such-flag (rdzv-server --help explains every flag)"),
        (
            ("--exclude-after", "3/24h", "--on-exclude", "/nowhere/tell --now"),
            "/nowhere/tell is not a program that can",
        ),
        (("--prot", "1"), "unrecognized arguments: --prot 1; did you mean --port? ("),
        (
            ("--exclude-after", "3"),
            "--exclude-after: N/TIME, a number of times within a time, as in 3/24h, not '3'",
        ),
        (("--port", "65536"), "a port is a number from 0 to 65535, not '65536'"),
        (("--port", "１"), "a port is a number from 0 to 65535, not '１'"),
        (("--retention", "nan"), "argument --retention: a number of seconds, not 'nan'"),
        (("--exit-when-idle", "soon"), "argument --exit-when-idle: a number of seconds, not 'soon'"),
        (("--listen-fd", "x"), "argument --listen-fd: the number of a file descriptor, not 'x'"),
        (("--max-runs", "0"), "argument --max-runs: a number from 1 to 10000000, not '0'"),
        ((*ETCD, "--leader-lease", "0.5"), "argument --leader-lease: a whole number of seconds from 1 to 3600"),
        ((*ETCD, "--shards", "0"), "argument --shards: a number from 1 to 256, not '0'"),
        ((*ETCD, "--shards", "257"), "argument --shards: a number from 1 to 256, not '257'"),
        ((*ETCD, "--advertise", "a"), "argument --advertise: 'a' has no port: give HOST:PORT, such as a:29400"),
        (("--leader-lease", "5", "--store", "memory"), "--leader-lease is for one of several servers: with --store"),
        (("--shards", "1"), "--shards is for one of several servers: with --store"),
        (("--etcd-ca", "x"), "--etcd-ca is for one of several servers"),
        (("--advertise", "a:29400"), "--advertise is for one of several servers"),
        ((*ETCD, "--exit-when-idle", "5"), "--exit-when-idle: not with --store etcd://"),
        ((*ETCD, "--etcd-key", "x"), "--etcd-cert and --etcd-key belong together"),
        (("--tls-cert", "x"), "--tls-cert and --tls-key belong together"),
        (("--tls-client-ca", "x"), "--tls-client-ca needs --tls-cert and --tls-key, too"),
        (("--admin-token-file", "x"), "--admin-token-file needs --token-file, too"),
        (("--read-token-file", "x"), "--read-token-file needs --token-file, too: without it no agent could take part"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(flags, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(list(flags))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rdzv-server: error: ") and says in line
