"""Tokens and TLS as named in a server's settings: read at the start and on reload, and what the log warns about."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from rdzv_protocol.certificates import validity

from rdzv_server.auth import reload, tls_config
from rdzv_server.auth.authorization import Access, Role, Token
from rdzv_server.auth.reload import BadTokenFile, Security, read_tokens
from rdzv_server.config import ServerConfig
from rdzv_server.storage.base import StoreSilent, StoreUnavailable
from rdzv_server.words import auth as words
from tests.support.certificates import Authority
from tests.support.message_search import has_message, pattern
from tests.support.process_info import until


def write(path: Path, content: str, mode: int = 0o600) -> str:
    path.write_text(content)
    path.chmod(mode)
    return str(path)


async def test_the_files_are_read_anew_and_the_old_tokens_stay_if_one_is_bad(tmp_path, caplog):
    agents, admins = write(tmp_path / "agents", "first"), write(tmp_path / "admins", "boss")
    security = Security(ServerConfig(token_file=agents, admin_token_file=admins))
    boss = Token(Role.ADMIN, b"boss")
    assert security.has_files and security.access.tokens == (Token(Role.AGENT, b"first"), boss)
    assert list(security.notes("::")) == []
    renewed: list[Access] = []
    for content in ("second", "far too many words"):
        write(tmp_path / "agents", content)
        await security.renew(lambda access, tls: renewed.append(access))
    assert [access.tokens for access in renewed] == [(Token(Role.AGENT, b"second"), boss)]
    assert security.access is renewed[0] and has_message(caplog.text, words.not_renewed)


async def test_the_certificates_for_etcd_are_read_anew_and_the_old_ones_stay_if_etcd_keeps_them(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    cert, key = authority.issue("etcd", days=90)
    security = Security(ServerConfig(etcd_cert=cert, etcd_key=key))
    assert security.has_files
    before = security.expiries()
    authority.issue("etcd", days=5)

    async def refuse() -> None:
        raise StoreUnavailable("not these")

    await security.renew_for_etcd(refuse)
    assert security.expiries() == before and caplog.messages == [words.etcd_not_renewed("not these")]
    await security.renew_for_etcd(accept)
    assert security.expiries() == {"--etcd-cert": validity("--etcd-cert", cert).ends_at} != before
    assert caplog.messages[1:] == [words.ETCD_RENEWED, words.certificate_expires("--etcd-cert", cert, 4)]
    os.unlink(cert)
    await security.renew_for_etcd(accept)
    assert has_message(caplog.messages[-1], words.etcd_not_renewed)


async def test_the_certificates_for_etcd_are_tried_again_until_etcd_answers(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(reload, "RETRY_S", 0.0)
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    cert, key = authority.issue("etcd", days=90)
    security = Security(ServerConfig(etcd_cert=cert, etcd_key=key))
    authority.issue("etcd", days=80)
    tries = 0

    async def renew() -> None:
        nonlocal tries
        tries += 1
        if tries == 3:  # it accepts the files of now, not those of the first try
            return
        authority.issue("etcd", days=80 - tries)
        raise StoreSilent("no answer")

    await security.renew_for_etcd(renew)
    assert caplog.messages == [words.etcd_not_renewed_yet("no answer"), words.ETCD_RENEWED]
    assert tries == 3 and security.expiries() == {"--etcd-cert": validity("--etcd-cert", cert).ends_at}


async def accept() -> None:
    """Use the files for etcd."""


async def test_a_server_without_certificates_for_etcd_reads_none(caplog):
    async def never() -> None:
        raise AssertionError

    await Security(ServerConfig()).renew_for_etcd(never)
    assert not caplog.messages


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_can_read_is_warned_of(tmp_path, mode):
    cert, key = Authority(tmp_path).issue("server")
    Path(key).chmod(mode)
    tokens = write(tmp_path / "agents", "one", mode)
    notes = [note for _, note in Security(ServerConfig(token_file=tokens, tls_cert=cert, tls_key=key)).notes("::")]
    assert notes[0] == words.tls(cert, validity("--tls-cert", cert).ends_at)
    assert {words.exposed("--token-file", tokens), words.exposed("--tls-key", key)} < set(notes)
    for_etcd = Security(ServerConfig(etcd_cert=cert, etcd_key=key))
    assert [note for _, note in for_etcd.notes("127.0.0.1")] == [words.exposed("--etcd-key", key)]


@pytest.mark.parametrize(
    ("address", "warned"), [("::", True), ("10.0.0.7", True), ("127.0.0.1", False), ("127.8.8.8", False)]
)
def test_a_server_that_listens_beyond_this_host_is_warned_about(address, warned):
    security = Security(ServerConfig())
    assert not security.has_files and bool(list(security.notes(address))) is warned


@pytest.mark.parametrize("flag", ["--tls-cert", "--etcd-cert"])
@pytest.mark.parametrize("days", [5, -1], ids=["soon", "expired"])
async def test_a_certificate_is_warned_of_every_day(tmp_path, monkeypatch, caplog, days, flag):
    monkeypatch.setattr(reload, "DAY_S", 0.01)
    cert, key = Authority(tmp_path).issue("server", days=days)
    kind = flag.removeprefix("--").removesuffix("-cert")
    security = Security(ServerConfig(**{f"{kind}_cert": cert, f"{kind}_key": key}))
    warning = words.certificate_expires(flag, cert, 4) if days > 0 else words.certificate_expired(flag, cert)
    assert warning in [note for _, note in security.notes("127.0.0.1")]
    os.unlink(cert)  # what counts is the certificate that is in use
    async with watched(security):
        await until(lambda: caplog.messages.count(warning) == 3)


@pytest.mark.parametrize("flag", ["--tls-cert", "--etcd-cert"])
async def test_a_certificate_that_expires_while_the_server_runs_is_reported_at_that_moment(
    tmp_path, monkeypatch, caplog, flag
):
    monkeypatch.setattr(reload, "MARGIN_S", 0.0)
    wall_clock = SimpleNamespace(time=datetime.now(UTC), now=lambda zone: wall_clock.time)
    monkeypatch.setattr(tls_config, "datetime", wall_clock)
    authority = Authority(tmp_path)
    cert, key = authority.issue("server", days=90)
    kind = flag.removeprefix("--").removesuffix("-cert")
    security = Security(ServerConfig(**{f"{kind}_cert": cert, f"{kind}_key": key}))

    async def renew() -> None:
        if kind == "etcd":
            await security.renew_for_etcd(accept)
        else:
            await security.renew(lambda access, tls: None)

    async with watched(security):
        authority.issue("server", days=30)
        wall_clock.time = validity(flag, cert).ends_at - timedelta(seconds=0.05)
        await renew()
        assert caplog.messages == [words.certificate_expires(flag, cert, 0)]
        await asyncio.sleep(0)  # it looks again in 0.05 s
        wall_clock.time += timedelta(seconds=0.1)
        await until(lambda: words.certificate_expired(flag, cert) in caplog.messages)


@pytest.mark.parametrize("flag", ["--tls-client-ca", "--etcd-ca"])
@pytest.mark.parametrize("days", [[-1, 5], [5, -1], [5]])
def test_of_several_authorities_the_last_one_to_expire_counts(tmp_path, flag, days):
    """An old authority may expire beside its successor."""
    authority, bundle = Authority(tmp_path), tmp_path / "bundle"
    certs = {each: authority.issue(f"ca{each}", days=each).cert for each in days}
    bundle.write_text("".join(Path(cert).read_text() for cert in certs.values()))
    cert, key = authority.issue("server")
    of_listener = {"tls_cert": cert, "tls_key": key} if flag == "--tls-client-ca" else {}
    security = Security(ServerConfig(**of_listener, **{flag[2:].replace("-", "_"): str(bundle)}))
    assert security.expiries()[flag] == validity(flag, certs[5]).ends_at
    warnings = [note for level, note in security.notes("127.0.0.1") if level == logging.WARNING]
    assert warnings == [words.certificate_expires(flag, str(bundle), 4)]
    assert security.expiries().keys() == ({flag, "--tls-cert"} if of_listener else {flag})


def test_without_a_certificate_the_server_never_looks():
    assert Security(ServerConfig())._next_look_s() is None


@asynccontextmanager
async def watched(security: Security) -> AsyncIterator[None]:
    watch = asyncio.create_task(security.watch_certificates())
    await asyncio.sleep(0)  # it waits for the certificates of now
    yield
    assert not watch.done()
    watch.cancel()


# Files of tokens.


def test_a_file_holds_tokens_comments_and_empty_lines(tmp_path):
    path = tmp_path / "agents"
    path.write_bytes(b"# everybody\nfirst\n\n  second  team-a-* \r\n#third\nfourth * 7")
    assert read_tokens(Role.AGENT, "--token-file", str(path)) == [
        Token(Role.AGENT, b"first"),
        Token(Role.AGENT, b"second", "team-a-*"),
        Token(Role.AGENT, b"fourth", "*", 7),
    ]


@pytest.mark.parametrize(
    ("role", "content", "says"),
    [
        (Role.AGENT, b"", words.NO_TOKEN_IN_FILE),
        (Role.AGENT, b"\n# nothing\n", words.NO_TOKEN_IN_FILE),
        (Role.AGENT, b"hush a b", words.BAD_LINE),
        (Role.AGENT, b"hush a 0", words.BAD_LINE),
        (Role.AGENT, b"hush a 2 x", words.BAD_LINE),
        (Role.AGENT, "größe".encode(), words.NOT_PRINTABLE),
        (Role.AGENT, b"hu\x00sh", words.NOT_PRINTABLE),
        (Role.ADMIN, b"hush team-a-*", words.NOT_FOR_SOME_RUNS),
    ],
)
def test_an_invalid_token_file_is_refused_without_showing_a_secret(tmp_path, role, content, says):
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(BadTokenFile, match=pattern(words.bad_token_file("--a-token-file", str(path), says))) as error:
        read_tokens(role, "--a-token-file", str(path))
    assert "hush" not in str(error.value)


def test_a_file_that_is_not_there():
    with pytest.raises(
        BadTokenFile, match=pattern(words.bad_token_file("--token-file", "/nowhere", os.strerror(errno.ENOENT)))
    ):
        read_tokens(Role.AGENT, "--token-file", "/nowhere")
