"""Credentials of an agent: the token, and its files."""

import pytest
from rdzv_protocol.credentials import Credentials, read_token
from rdzv_protocol.words import flags

from tests.support.message_search import pattern


def test_a_token_file_can_have_comments(tmp_path):
    (tmp_path / "token").write_text("# team a\n\n  s3cret \n")
    assert read_token(str(tmp_path / "token")) == "s3cret"


@pytest.mark.parametrize("content", ["", "# nothing\n", "one\ntwo\n", "one team-a-*\n", "größe\n"])
def test_a_file_without_a_token_is_refused_and_its_content_is_not_shown(tmp_path, content):
    (tmp_path / "token").write_text(content)
    with pytest.raises(ValueError, match=pattern(flags.no_token, path=str(tmp_path / "token"))):
        read_token(str(tmp_path / "token"))


def test_credentials_do_not_show_their_token(tmp_path):
    (tmp_path / "token").write_text("s3cret")
    assert "s3cret" not in repr(Credentials(str(tmp_path / "token")))


def test_a_token_that_is_refused_is_looked_up_again(tmp_path):
    path = tmp_path / "token"
    path.write_text("old")
    credentials = Credentials(str(path))
    assert not credentials.renew("old"), "the file holds no other"
    path.write_text("new")
    assert credentials.renew("old")
    assert credentials.token == "new"
    assert credentials.renew("old"), "another line has looked it up already"
    path.unlink()
    assert not credentials.renew("new")
    assert credentials.token == "new"


def test_without_a_token_there_is_nothing_to_renew():
    assert not Credentials().renew(None)
