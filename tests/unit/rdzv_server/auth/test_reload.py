"""Tokens and TLS as a server's settings name them: read at the start and again, and what is to be looked at."""

from pathlib import Path

import pytest

from rdzv_server.auth.authorization import Access, Role, Token
from rdzv_server.auth.reload import Security
from rdzv_server.config import ServerConfig
from tests.support.certificates import Authority


def write(path: Path, content: str, mode: int = 0o600) -> str:
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def test_the_files_are_read_anew_and_the_old_tokens_stay_if_one_is_bad(tmp_path, caplog):
    agents, admins = write(tmp_path / "agents", "first"), write(tmp_path / "admins", "boss")
    security = Security(ServerConfig(token_file=agents, admin_token_file=admins))
    boss = Token(Role.ADMIN, b"boss")
    assert security.has_files and security.access.tokens == (Token(Role.AGENT, b"first"), boss)
    assert list(security.notes("::")) == []
    renewed: list[Access] = []
    for content in ("second", "far too many words"):
        write(tmp_path / "agents", content)
        security.renew(lambda access, tls: renewed.append(access))
    assert [access.tokens for access in renewed] == [(Token(Role.AGENT, b"second"), boss)]
    assert security.access is renewed[0] and "keeping the tokens" in caplog.text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_secret_that_others_can_read_is_warned_of(tmp_path, mode):
    cert, key = Authority(tmp_path).issue("server")
    Path(key).chmod(mode)
    tokens = write(tmp_path / "agents", "one", mode)
    notes = [note for _, note in Security(ServerConfig(token_file=tokens, tls_cert=cert, tls_key=key)).notes("::")]
    assert notes[0].startswith(f"TLS: certificate {cert} expires on 20")
    assert [note for note in notes if "chmod" in note] == [
        f"{flag}: others than its owner can read it; chmod 600 ends that"
        for flag in (f"--token-file {tokens}", f"--tls-key {key}")
    ]


@pytest.mark.parametrize(("address", "warned"), [("::", True), ("10.0.0.7", True), ("127.0.0.1", False)])
def test_a_server_that_everybody_reaches_is_warned_of(address, warned):
    security = Security(ServerConfig())
    assert not security.has_files and bool(list(security.notes(address))) is warned
