"""Messages are data: each is made in one place, shown in one reviewed file, and quoted nowhere else."""

import pytest

from tests.golden.makers import FILE, makers, messages, modules, text
from tests.golden.quotes import TESTS, quotes


def test_the_file_shows_every_message_as_it_is_today():
    assert FILE.read_text() == text(), "look at the change of `python -m tests.golden --write`, and commit it"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_every_maker_says_something_on_lines_of_its_own(module):
    for name, maker in makers(module).items():
        for message in messages(maker):
            assert message.strip() and message == message.strip("\n"), name


def test_no_test_quotes_a_message():
    assert [f"{file.relative_to(TESTS)}:{line}: {quote}" for file, line, quote in quotes()] == []
