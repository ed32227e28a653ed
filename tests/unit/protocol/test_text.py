"""Texts are made fit for a message: the result is printable, of bounded size, and can be encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_protocol.text import age, clip, last_lines, one_line, printable, ranks, span

anything = st.text(st.characters(codec=None), max_size=60)
"""Any text, including control characters and lone surrogates, which JSON can contain."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [("boom", "boom"), ("a\tb\x1b[31m", "a b [31m"), ("\ud800", " "), ("naïve 🙂", "naïve 🙂"), ("", "")],
)
def test_characters_that_move_a_cursor_or_cannot_be_encoded_become_spaces(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "most", "short"),
    [
        ("boom", 4, "boom"),
        ("boomer", 5, "bo..."),
        ("🙂🙂🙂", 12, "🙂🙂🙂"),
        ("🙂🙂🙂", 11, "🙂🙂..."),
        ("🙂🙂🙂", 10, "🙂..."),
    ],
)
def test_a_long_text_is_cut_between_characters(text, most, short):
    assert clip(text, most) == short


def test_the_last_lines_are_kept():
    lines = [f"line {number}" for number in range(100)]
    assert last_lines(lines, 3, 1_000) == ("line 97", "line 98", "line 99")
    assert last_lines(lines, 50, 21) == ("line 97", "line 98", "line 99")
    assert last_lines([], 3, 1_000) == ()


def test_an_overlong_line_does_not_displace_all_others():
    kept = last_lines(["the cause", "x" * 1_000_000], 10, 100)
    assert kept == ("the cause", "x" * 47 + "...")


def test_the_first_meaningful_line_is_shown():
    assert one_line(["", " \t", "\x07boom ", "more"]) == "boom"
    assert one_line([]) == ""


@given(st.lists(anything, max_size=20), st.integers(1, 30), st.integers(8, 400))
def test_the_last_lines_never_take_more_than_they_may(lines, most_lines, most_bytes):
    kept = last_lines([printable(line) for line in lines], most_lines, most_bytes)
    assert len(kept) <= most_lines
    assert sum(len(line.encode()) for line in kept) <= most_bytes


@pytest.mark.parametrize(("seconds", "text"), [(90, "90 s"), (1_800, "30 min"), (86_400, "1 d"), (7_200, "2 h")])
def test_a_window_in_words(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (0, "0s"), (12.4, "12s"), (60, "1m"), (200, "3m20s"), (7_500, "2h5m"), (360_000, "4d4h"), (-3, "0s")],
)
def test_an_age_is_short(seconds: float | None, shown: str) -> None:
    assert age(seconds) == shown


@pytest.mark.parametrize(
    ("ascending", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([*range(8), 9], "ranks 0-7, 9"),
        (range(4096), "ranks 0-4095"),
        ([*range(0, 8, 2), 9, 10, 12], "ranks 0, 2, 4, 6 and 3 more"),
    ],
)
def test_ranks_are_named_as_ranges_of_which_there_are_few(ascending, text):
    assert ranks(ascending) == text
