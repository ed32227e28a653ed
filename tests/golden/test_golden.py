"""Messages are data: each is made in one place, shown in one reviewed file, and quoted nowhere else."""

import sys
from collections import Counter

import pytest

from tests.golden.help_pages import HELP_FILE, help_text
from tests.golden.makers import FILE, makers, messages, modules, text
from tests.golden.quotes import TESTS, quotes


def test_the_file_shows_every_message_as_it_is_today():
    assert FILE.read_text() == text(), "look at the change of `python -m tests.golden --write`, and commit it"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="argparse of another version lays pages out otherwise")
def test_the_file_shows_every_page_of_help_as_it_is_today():
    assert HELP_FILE.read_text() == help_text(), "look at the change of `python -m tests.golden --write`, and commit it"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_every_maker_says_something_on_lines_of_its_own(module):
    for name, maker in makers(module).items():
        for message in messages(maker):
            assert message.strip() and message == message.strip("\n"), name


def test_no_two_kinds_of_a_package_say_the_same():
    of_each = Counter(
        (module.__name__.split(".")[0], message)
        for module in modules()
        for maker in makers(module).values()
        for message in messages(maker)
    )
    assert [message for message, number in of_each.items() if number > 1] == []


def test_no_test_quotes_a_message():
    assert [f"{file.relative_to(TESTS)}:{line}: {quote}" for file, line, quote in quotes()] == []
