"""Files of tokens: what they may hold, and what is said of one that is no good."""

from pathlib import Path

import pytest

from rdzv_server.auth.authorization import Role, Token
from rdzv_server.auth.token_files import BadTokenFile, TokenFiles


def write(path: Path, content: bytes, mode: int = 0o600) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def test_a_file_holds_tokens_comments_and_empty_lines(tmp_path):
    agents = write(tmp_path / "agents", b"# everybody\nfirst\n\n  second  team-a-* \r\n#third\nfourth * 7")
    admins = write(tmp_path / "admins", b"boss")
    files = TokenFiles({Role.AGENT: agents, Role.ADMIN: admins})
    assert tuple(files.read()) == (
        Token(Role.AGENT, b"first"),
        Token(Role.AGENT, b"second", "team-a-*"),
        Token(Role.AGENT, b"fourth", "*", 7),
        Token(Role.ADMIN, b"boss"),
    )
    assert list(files.warnings()) == []


def test_a_file_is_read_anew_each_time(tmp_path):
    files = TokenFiles({Role.AGENT: write(tmp_path / "agents", b"first")})
    write(tmp_path / "agents", b"second")
    assert tuple(files.read()) == (Token(Role.AGENT, b"second"),)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "there is no token in it"),
        (b"\n# nothing\n", "there is no token in it"),
        (b"hush a b", "each line holds TOKEN, TOKEN RUN_ID_PATTERN or TOKEN RUN_ID_PATTERN MOST_RUNS"),
        (b"hush a 0", "each line holds TOKEN, TOKEN RUN_ID_PATTERN or"),
        (b"hush a 2 x", "each line holds TOKEN, TOKEN RUN_ID_PATTERN or"),
        ("größe".encode(), "only printable ASCII"),
        (b"hu\x00sh", "only printable ASCII"),
    ],
)
def test_what_is_no_file_of_tokens_is_said_and_tells_no_secret(tmp_path, content, says):
    path = write(tmp_path / "agents", content)
    with pytest.raises(BadTokenFile, match=f"^--token-file {path}: {says}") as error:
        TokenFiles({Role.AGENT: path}).read()
    assert "hush" not in str(error.value)


def test_a_file_that_is_not_there():
    with pytest.raises(BadTokenFile, match=r"^--token-file /nowhere: No such file or directory$"):
        TokenFiles({Role.AGENT: "/nowhere"}).read()


def test_only_agents_are_kept_to_some_runs(tmp_path):
    agents, admins = write(tmp_path / "agents", b"one"), write(tmp_path / "admins", b"boss team-a-*")
    with pytest.raises(BadTokenFile, match=r"^--admin-token-file .*: only agents' tokens can be for some runs alone$"):
        TokenFiles({Role.AGENT: agents, Role.ADMIN: admins}).read()


def test_a_server_that_no_agent_could_join_is_a_mistake(tmp_path):
    with pytest.raises(BadTokenFile, match=r"^--read-token-file needs --token-file, too"):
        TokenFiles({Role.READ: write(tmp_path / "readers", b"one")})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_can_read_is_warned_of(tmp_path, mode):
    path = write(tmp_path / "agents", b"one", mode)
    warning = f"--token-file {path}: others than its owner can read it; chmod 600 ends that"
    assert list(TokenFiles({Role.AGENT: path}).warnings()) == [warning]
