"""Messages are data: each is made in one place, shown in one reviewed file, and quoted nowhere else."""

import re
import sys
from collections import Counter

import pytest

from tests.golden.help_pages import HELP_FILE, help_text
from tests.golden.makers import FILE, makers, messages, modules, text
from tests.golden.quotes import TESTS, quotes
from tests.golden.reference_pages import reference_pages
from tests.golden.sentences import WORDS, sentences

ROOT = TESTS.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*/*.md"))]
FIELD = re.compile(r"<[^<>]*>|\d[\d.]*")


def test_the_file_shows_every_message_as_it_is_today():
    assert FILE.read_text() == text(), "look at the change of `python -m tests.golden --write`, and commit it"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse of another version lays pages out otherwise")
def test_the_file_shows_every_page_of_help_as_it_is_today():
    assert HELP_FILE.read_text() == help_text(), "look at the change of `python -m tests.golden --write`, and commit it"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="signatures of another version are written otherwise")
def test_generated_pages_of_the_reference_show_what_the_programs_declare_today():
    pages = reference_pages()
    assert {path: path.read_text() for path in pages} == pages, "run `python -m tests.golden --write`, and commit it"


def test_every_maker_says_something_on_lines_of_its_own():
    for module in modules():
        for name, maker in makers(module).items():
            for message in messages(maker):
                assert message.strip() and message == message.strip("\n"), (module.__name__, name)


def test_messages_of_a_package_are_distinct():
    of_each = Counter(
        (module.__name__.split(".")[0], message)
        for module in modules()
        for maker in makers(module).values()
        for message in messages(maker)
    )
    assert [message for message, number in of_each.items() if number > 1] == []


def test_no_two_packages_make_the_same_sentence():
    """A sentence that several programs need is in `rdzv_protocol/words/`."""
    packages: dict[str, set[str]] = {}
    for module in modules():
        for message in (message for maker in makers(module).values() for message in messages(maker)):
            if len(message.split()) >= WORDS:
                packages.setdefault(message, set()).add(module.__name__.split(".")[0])
    assert {message: names for message, names in packages.items() if len(names) > 1} == {}


def test_pages_quote_messages_as_they_are():
    """A line of a block that begins like a message, with four or more words, must continue like it."""
    messages: dict[str, list[re.Pattern[str]]] = {}
    for message in (line.strip() for line in FILE.read_text().splitlines() if line.startswith("    ")):
        parts = FIELD.split(message)
        if len(parts[0].split()) >= 4:
            messages.setdefault(parts[0], []).append(re.compile(".*?".join(map(re.escape, parts))))
    quoted = [
        (page.name, line[line.index(beginning) :], messages[beginning])
        for page in PAGES
        for block in re.findall(r"^```.*?\n(.*?)^```", page.read_text(), re.M | re.S)
        for line in block.splitlines()
        for beginning in messages
        if beginning in line and "…" not in line
    ]
    assert len(quoted) > 20
    assert [(page, text) for page, text, kinds in quoted if not any(kind.match(text) for kind in kinds)] == []


def test_tests_do_not_quote_messages():
    assert [f"{file.relative_to(TESTS)}:{line}: {quote}" for file, line, quote in quotes()] == []


_HELP = "`--help`, which `help.txt` shows"
NO_MESSAGES = {
    "node_agent": {
        "__init__.py": "Python's own sentence for a missing attribute",
        "cli/arguments.py": _HELP,
        "cli/parser.py": _HELP,
        "features/rules/feature.py": "a program",
        "flags.py": _HELP,
        "kernel/failures/report.py": "torch's sentence for a missing traceback",
    },
    "protocol": {},
    "rdzv_server": {
        "cli.py": _HELP,
        "config.py": _HELP,
        "http/openapi.py": "the description of the API",
        "storage/sqlite.py": "SQL",
    },
    "rdzvctl": {"cli.py": _HELP},
}
"""Files with sentences that are not messages, by package, and what these are."""


@pytest.mark.parametrize("package", NO_MESSAGES)
def test_all_sentences_of_a_package_are_in_words(package):
    found = [
        (file.relative_to(ROOT / package).as_posix(), line, text) for file, line, text in sentences(ROOT / package)
    ]
    assert [each for each in found if each[0] not in NO_MESSAGES[package]] == []
    assert {file for file, _, _ in found} == NO_MESSAGES[package].keys(), "a file has no such sentence any more"


def test_a_sentence_outside_words_is_found(tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "runs.py").write_text('A = "one two three four five"\n')
    (tmp_path / "views.py").write_text('''"""A docstring of five words or more."""
SHORT = "one two three four"
LONG = (
    f"run {SHORT} has ended "
    "now")
AGE = Meta(description="a declaration of five words", show=lambda: "one that a function says")
def refuse(parser):
    assert parser, "this is only for developers"
    parser.add_argument("--x", help="set this to that value")
    raise Refused("this is for the users")
''')
    found = [text for _, _, text in sentences(tmp_path)]
    assert found == ["run field has ended now", "one that a function says", "this is for the users"]
