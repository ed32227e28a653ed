"""Files of tokens: what they may hold, and what is said of one that is no good."""

import pytest

from rdzv_server.auth.authorization import Role, Token
from rdzv_server.auth.token_files import BadTokenFile, read_tokens


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
        (Role.AGENT, b"", "there is no token in it"),
        (Role.AGENT, b"\n# nothing\n", "there is no token in it"),
        (Role.AGENT, b"hush a b", "each line holds TOKEN, TOKEN RUN_ID_PATTERN or TOKEN RUN_ID_PATTERN MOST_RUNS"),
        (Role.AGENT, b"hush a 0", "each line holds TOKEN, TOKEN RUN_ID_PATTERN or"),
        (Role.AGENT, b"hush a 2 x", "each line holds TOKEN, TOKEN RUN_ID_PATTERN or"),
        (Role.AGENT, "größe".encode(), "only printable ASCII"),
        (Role.AGENT, b"hu\x00sh", "only printable ASCII"),
        (Role.ADMIN, b"hush team-a-*", "only agents' tokens can be for some runs alone"),
    ],
)
def test_what_is_no_file_of_tokens_is_said_and_tells_no_secret(tmp_path, role, content, says):
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(BadTokenFile, match=f"^--a-token-file {path}: {says}") as error:
        read_tokens(role, "--a-token-file", str(path))
    assert "hush" not in str(error.value)


def test_a_file_that_is_not_there():
    with pytest.raises(BadTokenFile, match=r"^--token-file /nowhere: No such file or directory$"):
        read_tokens(Role.AGENT, "--token-file", "/nowhere")
