"""Visible text: a name shows all of its characters, and no text covers the lines beside it."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdzv_protocol.actions import ForgetRequest
from rdzv_protocol.codec import convert
from rdzv_protocol.errors import MalformedMessage
from rdzv_protocol.text import printable
from rdzv_protocol.visible import MOST_MARKS, is_visible

ACUTE = "\N{COMBINING ACUTE ACCENT}"
IN_USE = {
    "node-01": "ASCII",
    "e\N{COMBINING CIRCUMFLEX ACCENT}\N{COMBINING ACUTE ACCENT}": "Vietnamese, decomposed",
    "ש\u05c1\u05bc\u05b8\u0591": "Hebrew",
    "กำลังเรียน้ำ": "Thai",
    "क्षेत्रज्ञ": "Hindi",
    "مُحَمَّدٌ": "Arabic",
    "\N{GHOST}" * 128: "emoji",
    ACUTE + "a": "a mark at the beginning",
}
UNSEEN = (
    *"\u034f\u115f\u1160\u17b4\u180b\u200b\u2800\u3000\u3164\ufe00\ufe0f\ufeff\uffa0\ufff0\U0001d159\U000e0100\U000e0fff",
    "a" + ACUTE * (MOST_MARKS + 1),
    "node\n",
)


@pytest.mark.parametrize("name", IN_USE, ids=IN_USE.values())
def test_names_of_all_languages_are_visible(name):
    assert is_visible(name)
    assert printable(name) == name


@pytest.mark.parametrize("name", UNSEEN, ids=ascii)
def test_characters_without_a_glyph_or_stacked_too_high_are_refused_in_names(name):
    assert not is_visible(f"node{name}")
    with pytest.raises(MalformedMessage, match="run_id must be text of 1 to 256 visible characters"):
        convert(ForgetRequest, {"run_id": name})


@pytest.mark.parametrize("blank", "\u115f\u1160\u2800\u3164\uffa0", ids=ascii)
def test_a_blank_character_of_a_text_becomes_a_space(blank):
    assert printable(f"a{blank}b") == "a b"


def test_a_text_keeps_the_first_marks_of_a_stack():
    stack = "".join(map(chr, range(0x300, 0x370)))
    assert printable(f"a{stack}b{stack}") == f"a{stack[:MOST_MARKS]}b{stack[:MOST_MARKS]}"


def test_all_combining_marks_and_only_those_are_limited():
    for character in map(chr, range(0x300, sys.maxunicode + 1)):
        category = unicodedata.category(character)
        if category not in ("Cn", "Co", "Cs", "Mc") and is_visible(character):
            is_limited = not is_visible(character * (MOST_MARKS + 1))
            assert is_limited == (category in ("Mn", "Me")), f"U+{ord(character):04X}"


@given(st.text(st.characters(codec=None)) | st.text(f"a\n{ACUTE}\ufe0f\u3164\u0e47"))
def test_a_text_that_has_been_made_printable_may_be_a_name(text):
    assert is_visible(printable(text))
    assert printable(printable(text)) == printable(text)
