"""Contexts in a configuration file, and the server that a command uses."""

import os
import stat
from pathlib import Path

import pytest
from rdzv_protocol.words import flags

from rdzvctl import contexts
from rdzvctl.contexts import Target, choose, load
from rdzvctl.errors import BadInput
from rdzvctl.words import contexts as words
from tests.support.message_search import pattern
from tests.support.no_home_folder import remove_home_folder

LAB = """\
current = "lab"

[contexts.lab]
endpoint = "a:1,b:2"
token_file = "/lab.token"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment whose configuration file is the test's."""
    (tmp_path / "rdzv").mkdir()
    (tmp_path / "rdzv" / "config.toml").write_text(LAB)
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("given", "variables", "endpoints", "token_file"),
    [
        ({"endpoint": "x"}, {"RDZV_ENDPOINT": "y"}, (("x", 29400),), None),
        ({"endpoint": "[::1]:5"}, {"RDZV_TOKEN_FILE": "t"}, (("::1", 5),), "t"),
        ({"endpoint": "x", "token_file": "u"}, {"RDZV_TOKEN_FILE": "t"}, (("x", 29400),), "u"),
        ({"context": "lab"}, {"RDZV_ENDPOINT": "y", "RDZV_TOKEN_FILE": "t"}, (("a", 1), ("b", 2)), "/lab.token"),
        ({}, {"RDZV_ENDPOINT": "y:9"}, (("y", 9),), None),
        ({}, {"RDZV_ENDPOINT": "y:9", "RDZV_TOKEN_FILE": "t"}, (("y", 9),), "t"),
        ({}, {}, (("a", 1), ("b", 2)), "/lab.token"),
        ({"token_file": "u"}, {}, (("a", 1), ("b", 2)), "u"),
    ],
)
def test_flags_come_before_the_environment_and_that_before_the_current_context(
    environment: dict[str, str], given: dict[str, str], variables: dict[str, str],
    endpoints: tuple[tuple[str, int], ...], token_file: str | None,
) -> None:  # fmt: skip
    """A context's token is never sent to a server that another source names."""
    place = choose(given, environment | variables)
    assert (place.endpoints, place.token_file) == (endpoints, token_file)


def test_without_anything_it_is_this_machine(tmp_path: Path) -> None:
    place = choose({}, {"XDG_CONFIG_HOME": str(tmp_path)})
    assert place == Target((("localhost", 29400),), words.NOTHING_GIVEN)


def test_a_user_without_a_home_has_no_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named ~ where the command runs, which may be another user's, is not looked at."""
    remove_home_folder(monkeypatch, tmp_path)
    (tmp_path / "~/.config/rdzv").mkdir(parents=True)
    (tmp_path / "~/.config/rdzv/config.toml").write_text(LAB)
    assert choose({}, {}) == Target((("localhost", 29400),), words.NOTHING_GIVEN)
    with pytest.raises(BadInput, match=pattern(words.NO_HOME)):
        choose({"context": "lab"}, {})
    assert contexts.path_of({"RDZV_CONFIG": "c.toml"}) == "c.toml"
    assert contexts.path_of({"XDG_CONFIG_HOME": "relative"}) == ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"context": "lap"}, words.no_context("lap", "{path}", ["lab"])),
        ({"endpoint": "a:0"}, flags.bad_value("--endpoint", flags.bad_endpoint("a:0", 1))),
        ({"endpoint": "ftp://a:1"}, flags.bad_value("--endpoint", flags.bad_scheme("ftp://a:1", "ftp"))),
        ({"endpoint": "https://a:1"}, flags.https_without_ca("--endpoint", "--tls-ca")),
        ({"tls_cert": "c"}, words.pair_incomplete(words.context_of("lab", "{path}"))),
        ({"tls_cert": "c", "tls_key": "k"}, words.no_ca(words.context_of("lab", "{path}"))),
    ],
)
def test_invalid_contexts_are_refused(environment: dict[str, str], given: dict[str, str], says: str) -> None:
    with pytest.raises(BadInput) as raised:
        choose(given, environment)
    assert str(raised.value) == says.format(path=contexts.path_of(environment))


def test_a_missing_context_can_be_created(environment: dict[str, str]) -> None:
    with pytest.raises(BadInput) as raised:
        choose({"context": "lap"}, environment)
    assert raised.value.help_lines == (words.add_context("lap", ["lab"]),)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ('current = "lab"\n[contexts.lab\n', 2, "Expected ']'"),
        ("a = [", 1, "Invalid value"),
        ('curent = "lab"\n', 1, words.unknown_key("curent", ["current"])),
        ("current = 3\n", 1, words.CURRENT_IS_NO_NAME),
        ("contexts = 3\n", 1, words.NO_TABLES),
        ("[contexts]\nlab = 3\n", 1, words.NO_TABLES),
        (
            '[contexts.lab]\nendpoint = "a:1"\ntoken = "x"\n',
            3,
            words.of_context("lab", words.unknown_key("token", ["token_file"])),
        ),
        ("[contexts.lab]\n\nendpoint = 3\n", 3, words.of_context("lab", words.no_text("endpoint"))),
        (
            '[contexts.lab]\nendpoint = "a\\nb"\n',
            2,
            words.of_context("lab", words.no_text("endpoint")),
        ),
        ('\n[contexts.lab]\ntoken_file = "x"\n', 2, words.context_without_endpoint("lab")),
        (
            f'{LAB}\n[contexts.other]\nendpoint = "c"\n'.replace('"lab"', '"lob"'),
            1,
            words.no_current("lob", ["lab"]),
        ),
    ],
)
def test_an_invalid_file_is_reported_with_the_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as raised:
        load(str(path))
    assert str(raised.value).startswith(f"{path}:{line}: ") and says in str(raised.value)


def test_a_file_that_is_not_text_or_that_any_user_may_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(BadInput, match=pattern(words.cannot_read, why=words.NOT_UTF_8)):
        load(str(path))
    path.write_text(LAB)
    path.chmod(0o666)
    with pytest.raises(BadInput, match=pattern(words.writable_by_others, path=str(path))):
        load(str(path))


def test_a_written_file_is_read_back_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "config.toml")
    fields = {"endpoint": "a:1", "token_file": '/with "quotes" and \\ and \N{SNOWMAN}'}
    file = contexts.Contexts(path, "a b", {"a b": fields, "c.d": {"endpoint": "[::1]:3"}})
    file.write()
    assert load(path) == file
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path / "new") == ["config.toml"]


def test_a_file_with_comments_is_backed_up_when_it_is_rewritten(environment: dict[str, str]) -> None:
    path = Path(contexts.path_of(environment))
    path.write_text(f"# Ours.\n{LAB}")
    load(str(path)).write()
    assert Path(f"{path}~").read_text() == f"# Ours.\n{LAB}"
    assert load(str(path)).contexts == load(f"{path}~").contexts


def test_commands_in_messages_quote_names_for_a_shell() -> None:
    assert " set-context 'my lab' " in words.add_context("my lab", [])
    assert words.writable_by_others("/home/my name/c").endswith(" chmod o-w '/home/my name/c'")
