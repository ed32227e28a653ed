"""Visible text: which characters a name may have, and how many marks may be stacked on one letter.

A combining mark does not take a column of its own, so a hundred of them in a row cover the lines above and below.
Unicode's stream-safe format (UAX 15) allows 30 in a row, and says that this is far more than any language needs. Names
and texts of agents have at most `MOST_MARKS`: pointed Hebrew needs four, and other living languages hardly ever need
more.
"""

import re
from functools import cache

MOST_MARKS = 4
"""Most combining marks in a row."""

_MARKS = """
300-36f 483-489 591-5bd 5bf 5c1-5c2 5c4-5c5 5c7-5c9 610-61a 64b-65f 670 6d6-6dc 6df-6e4 6e7-6e8 6ea-6ed 711 730-74a
7a6-7b0 7eb-7f3 7fd 816-819 81b-823 825-827 829-82d 859-85b 897-89f 8ca-8e1 8e3-902 93a-93c 941-94d 951-957 962-963
981 9bc 9c1-9cd 9e2-9e3 9fe-a02 a3c-a51 a70-a71 a75 a81-a82 abc ac1-acd ae2-ae3 afa-b01 b3c b3f-b56 b62-b63 b82
bc0-bcd c00-c04 c3c c3e-c56 c62-c63 c81 cbc cbf-ccd ce2-ce3 d00-d01 d3b-d3c d41-d4d d62-d63 d81 dca-dd6 e31 e34-e3a
e47-e4e eb1 eb4-ebc ec8-ece f18-f19 f35 f37 f39 f71-f84 f86-f87 f8d-fbc fc6 102d-103e 1058-1059 105e-1060 1071-1074
1082-108d 109d 135d-135f 1712-1714 1732-1733 1752-1753 1772-1773 17b4-17d3 17dd 180b-180d 180f 1885-1886 18a9
1920-193b 1a17-1a1b 1a56-1a7f 1ab0-1af0 1b00-1b03 1b34-1b42 1b6b-1b73 1b80-1b81 1ba2-1bad 1be6-1bf1 1c2c-1c37
1cd0-1cd2 1cd4-1ce8 1ced 1cf4 1cf8-1cf9 1dc0-1dff 20d0-20f0 2cef-2cf1 2d7f 2de0-2dff 302a-302d 3099-309a a66f-a672
a674-a67d a69e-a69f a6f0-a6f1 a802 a806 a80b a825-a826 a82c a8c4-a8c5 a8e0-a8f1 a8ff a926-a92d a947-a951 a980-a982
a9b3-a9bd a9e5 aa29-aa36 aa43 aa4c aa7c aab0 aab2-aab4 aab7-aab8 aabe-aabf aac1 aaec-aaed aaf6 abe5-abe8 abed fb1e
fe00-fe0f fe20-fe2f 101fd 102e0 10376-1037a 10a01-10a0f 10a38-10a3f 10ae5-10ae6 10d24-10d27 10d69-10d6d 10eab-10eac
10ecb-10ecf 10ef0-10eff 10f46-10f50 10f82-10f85 11001 11038-11046 11070 11073-11074 1107f-11081 110b3-110ba 110c2
11100-11102 11127-11134 11173 11180-11181 111b6-111be 111c9-111cc 111cf 1122f-11237 1123e 11241 112df-112ea
11300-11301 1133b-1133c 11340 11366-11374 113bb-113c0 113ce-113d0 113d2 113e1-113e2 11438-11446 1145e 114b3-114c3
115b2-115c0 115dc-115dd 11633-11640 116ab-116b7 1171d-1172b 1182f-1183a 1193b-1193e 11943 119d4-119e0 11a01-11a0a
11a33-11a38 11a3b-11a3e 11a47 11a51-11a5b 11a8a-11a99 11b60-11b66 11c30-11c3f 11c92-11cb6 11d31-11d45 11d47
11d90-11d97 11df0 11ef3-11ef4 11f00-11f01 11f36-11f3a 11f40-11f42 11f5a 13440 13447-13455 1611e-1612f 16af0-16af4
16b30-16b36 16f4f 16f8f-16f92 16fe4 1bc9d-1bc9e 1cf00-1cf46 1d127-1d128 1d167-1d169 1d17b-1d182 1d185-1d18b
1d1aa-1d1ad 1d242-1d244 1d25b-1d25c 1da00-1da36 1da3b-1da6c 1da75 1da84 1da9b-1daaf 1e000-1e02a 1e08f 1e130-1e136
1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5 1e8d0-1e8d6 1e944-1e94a e0100-e01ef
"""
"""Combining marks of Unicode 18 that take no column (categories Mn and Me), as ranges of code points. Unassigned
characters and spacing marks between them count as well."""
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Characters with a width but without a glyph."""
_UNSEEN = (
    r"\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000"
    r"\ufe00-\ufe0f\ufeff\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Control characters, characters that are invisible or change the direction of writing, and every space except
U+0020."""
PRINTABLE = f"^[^{_UNSEEN}{_BLANK}]*(?![\\s\\S])"
"""Regular expression of a text of one line in which every character is visible, as in the published schema. It works
for Python and for JavaScript, whose `$` differ. Texts of a message have no surrogates: msgpack and msgspec refuse
them."""


def _class() -> str:
    """Return the class of the marks in a regular expression."""
    ends = (each.partition("-") for each in _MARKS.split())
    return f"[{''.join(f'{chr(int(first, 16))}-{chr(int(last or first, 16))}' for first, _, last in ends)}]"


_MARK = _class()
NAME = f"^(?:[ -~]*|(?![\\s\\S]*{_MARK}{{{MOST_MARKS + 1}}})[^{_UNSEEN}{_BLANK}]*)(?![\\s\\S])"
"""Regular expression of a name: `PRINTABLE`, with at most `MOST_MARKS` combining marks in a row."""


@cache
def _not_visible() -> tuple[re.Pattern[str], ...]:
    stacked = f"({_MARK}{{{MOST_MARKS}}}){_MARK}+"
    return tuple(map(re.compile, (f"[{_UNSEEN}]", f"[{_BLANK}]", stacked)))


def is_visible(text: str) -> bool:
    """Return whether the text may be a name, or a part of one."""
    return text.isprintable() and (text.isascii() or re.search(NAME, text) is not None)


def only_visible(text: str) -> str:
    """Return the text without invisible characters, with a space for each blank one, and at most as many marks as in a
    name."""
    if re.search(NAME, text):
        return text
    unseen, blank, stacked = _not_visible()
    return stacked.sub(r"\1", blank.sub(" ", unseen.sub("", text)))
