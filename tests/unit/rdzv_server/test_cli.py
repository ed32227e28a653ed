"""The server's command line: every setting has a flag, and one line refuses invalid ones."""

import json
import logging
import sys
from dataclasses import fields

import pytest
from rdzv_protocol.log_lines import LineFormat
from rdzv_protocol.words import flags as flag_words

from rdzv_server.cli import LineFormatter, parse
from rdzv_server.config import ServerConfig
from rdzv_server.words import startup as words

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
        parse(["--help-all"])
    page = capsys.readouterr().out
    names = ["--" + field.name.removesuffix("_s").replace("_", "-") for field in fields(ServerConfig)]
    assert [name for name in names if f"\n  {name} " not in page] == []
    assert "{" not in page


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--no-such-flag",), words.see_help("unrecognized arguments: --no-such-flag")),
        (("--exclude-after", "3/24h", "--on-exclude", "/nowhere/tell --now"), words.not_executable("/nowhere/tell")),
        (("--prot", "1"), "unrecognized arguments: --prot 1; did you mean --port? ("),
        (("--lease=3",), words.see_help(words.flag_of_agent("--lease"))),
        (("--run_id", "night"), words.see_help(words.flag_of_agent("--run-id"))),
        (("--exclude-after", "3"), f"--exclude-after: {words.no_window('3')}"),
        (("--port", "65536"), words.other_value(words.A_PORT, "65536")),
        (("--port", "１"), words.other_value(words.A_PORT, "１")),
        (("--retention", "nan"), f"argument --retention: {words.other_value(words.A_NUMBER_OF_SECONDS, 'nan')}"),
        (
            ("--exit-when-idle", "soon"),
            f"argument --exit-when-idle: {words.other_value(words.A_NUMBER_OF_SECONDS, 'soon')}",
        ),
        (("--listen-fd", "x"), f"argument --listen-fd: {words.other_value(words.A_DESCRIPTOR, 'x')}"),
        (("--max-runs", "0"), f"argument --max-runs: expected {words.whole_number(1, 10_000_000)}, "),
        ((*ETCD, "--leader-lease", "0.5"), f"argument --leader-lease: expected {words.A_LEASE}"),
        ((*ETCD, "--shards", "0"), f"argument --shards: {words.other_value(words.whole_number(1, 256), '0')}"),
        ((*ETCD, "--shards", "257"), f"argument --shards: {words.other_value(words.whole_number(1, 256), '257')}"),
        ((*ETCD, "--advertise", "a"), "argument --advertise: " + flag_words.no_port("a", "a:29400")),
        (("--leader-lease", "5", "--store", "memory"), words.only_in_cluster("--leader-lease")),
        (("--shards", "1"), words.only_in_cluster("--shards")),
        (("--etcd-ca", "x"), words.only_in_cluster("--etcd-ca")),
        (("--advertise", "a:29400"), words.only_in_cluster("--advertise")),
        ((*ETCD, "--exit-when-idle", "5"), words.NEVER_IDLE),
        ((*ETCD, "--etcd-key", "x"), flag_words.belong_together("--etcd-cert", "--etcd-key")),
        (("--tls-cert", "x"), flag_words.belong_together("--tls-cert", "--tls-key")),
        (("--tls-client-ca", "x"), words.needs_certificate("--tls-client-ca")),
        (("--admin-token-file", "x"), words.needs_token_file("--admin-token-file")),
        (("--read-token-file", "x"), words.needs_token_file("--read-token-file")),
    ],
)
def test_invalid_values_are_refused_in_one_line(flags, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse(list(flags))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rdzv-server: error: ") and says in line


@pytest.mark.parametrize("is_json", [False, True])
def test_text_of_a_request_cannot_add_a_line_to_the_log(is_json):
    forged = "a\n2026-08-01 WARNING\x1b[2J\u202e\x9b\u2028b"
    try:
        raise ValueError(forged)
    except ValueError:
        record = logging.LogRecord("", logging.ERROR, "", 1, f"GET /{forged} failed", (), sys.exc_info())
    text = LineFormatter(LineFormat("rdzv-server", is_json)).format(record)
    if is_json:
        assert json.loads(text)["message"].isprintable()
    assert all(line.isprintable() for line in text.split("\n"))
    assert "failed" in text.split("\n")[0]
