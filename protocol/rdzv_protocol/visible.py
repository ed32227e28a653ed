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

_MARK = (
    "["
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1-\u05c2\u05c4-\u05c5\u05c7-\u05c9\u0610-\u061a\u064b-\u065f"
    "\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7-\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u07fd"
    "\u0816-\u0819\u081b-\u0823\u0825-\u0827\u0829-\u082d\u0859-\u085b\u0897-\u089f\u08ca-\u08e1\u08e3-\u0902"
    "\u093a-\u093c\u0941-\u094d\u0951-\u0957\u0962-\u0963\u0981\u09bc\u09c1-\u09cd\u09e2-\u09e3\u09fe-\u0a02"
    "\u0a3c-\u0a51\u0a70-\u0a71\u0a75\u0a81-\u0a82\u0abc\u0ac1-\u0acd\u0ae2-\u0ae3\u0afa-\u0b01\u0b3c\u0b3f-\u0b56"
    "\u0b62-\u0b63\u0b82\u0bc0-\u0bcd\u0c00-\u0c04\u0c3c\u0c3e-\u0c56\u0c62-\u0c63\u0c81\u0cbc\u0cbf-\u0ccd"
    "\u0ce2-\u0ce3\u0d00-\u0d01\u0d3b-\u0d3c\u0d41-\u0d4d\u0d62-\u0d63\u0d81\u0dca-\u0dd6\u0e31\u0e34-\u0e3a"
    "\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f18-\u0f19\u0f35\u0f37\u0f39\u0f71-\u0f84\u0f86-\u0f87"
    "\u0f8d-\u0fbc\u0fc6\u102d-\u103e\u1058-\u1059\u105e-\u1060\u1071-\u1074\u1082-\u108d\u109d\u135d-\u135f"
    "\u1712-\u1714\u1732-\u1733\u1752-\u1753\u1772-\u1773\u17b4-\u17d3\u17dd\u180b-\u180d\u180f\u1885-\u1886\u18a9"
    "\u1920-\u193b\u1a17-\u1a1b\u1a56-\u1a7f\u1ab0-\u1af0\u1b00-\u1b03\u1b34-\u1b42\u1b6b-\u1b73\u1b80-\u1b81"
    "\u1ba2-\u1bad\u1be6-\u1bf1\u1c2c-\u1c37\u1cd0-\u1cd2\u1cd4-\u1ce8\u1ced\u1cf4\u1cf8-\u1cf9\u1dc0-\u1dff"
    "\u20d0-\u20f0\u2cef-\u2cf1\u2d7f\u2de0-\u2dff\u302a-\u302d\u3099-\u309a\ua66f-\ua672\ua674-\ua67d\ua69e-\ua69f"
    "\ua6f0-\ua6f1\ua802\ua806\ua80b\ua825-\ua826\ua82c\ua8c4-\ua8c5\ua8e0-\ua8f1\ua8ff\ua926-\ua92d\ua947-\ua951"
    "\ua980-\ua982\ua9b3-\ua9bd\ua9e5\uaa29-\uaa36\uaa43\uaa4c\uaa7c\uaab0\uaab2-\uaab4\uaab7-\uaab8\uaabe-\uaabf"
    "\uaac1\uaaec-\uaaed\uaaf6\uabe5-\uabe8\uabed\ufb1e\ufe00-\ufe0f\ufe20-\ufe2f\U000101fd\U000102e0"
    "\U00010376-\U0001037a\U00010a01-\U00010a0f\U00010a38-\U00010a3f\U00010ae5-\U00010ae6\U00010d24-\U00010d27"
    "\U00010d69-\U00010d6d\U00010eab-\U00010eac\U00010ecb-\U00010ecf\U00010ef0-\U00010eff\U00010f46-\U00010f50"
    "\U00010f82-\U00010f85\U00011001\U00011038-\U00011046\U00011070\U00011073-\U00011074\U0001107f-\U00011081"
    "\U000110b3-\U000110ba\U000110c2\U00011100-\U00011102\U00011127-\U00011134\U00011173\U00011180-\U00011181"
    "\U000111b6-\U000111be\U000111c9-\U000111cc\U000111cf\U0001122f-\U00011237\U0001123e\U00011241"
    "\U000112df-\U000112ea\U00011300-\U00011301\U0001133b-\U0001133c\U00011340\U00011366-\U00011374"
    "\U000113bb-\U000113c0\U000113ce-\U000113d0\U000113d2\U000113e1-\U000113e2\U00011438-\U00011446\U0001145e"
    "\U000114b3-\U000114c3\U000115b2-\U000115c0\U000115dc-\U000115dd\U00011633-\U00011640\U000116ab-\U000116b7"
    "\U0001171d-\U0001172b\U0001182f-\U0001183a\U0001193b-\U0001193e\U00011943\U000119d4-\U000119e0"
    "\U00011a01-\U00011a0a\U00011a33-\U00011a38\U00011a3b-\U00011a3e\U00011a47\U00011a51-\U00011a5b"
    "\U00011a8a-\U00011a99\U00011b60-\U00011b66\U00011c30-\U00011c3f\U00011c92-\U00011cb6\U00011d31-\U00011d45"
    "\U00011d47\U00011d90-\U00011d97\U00011df0\U00011ef3-\U00011ef4\U00011f00-\U00011f01\U00011f36-\U00011f3a"
    "\U00011f40-\U00011f42\U00011f5a\U00013440\U00013447-\U00013455\U0001611e-\U0001612f\U00016af0-\U00016af4"
    "\U00016b30-\U00016b36\U00016f4f\U00016f8f-\U00016f92\U00016fe4\U0001bc9d-\U0001bc9e\U0001cf00-\U0001cf46"
    "\U0001d127-\U0001d128\U0001d167-\U0001d169\U0001d17b-\U0001d182\U0001d185-\U0001d18b\U0001d1aa-\U0001d1ad"
    "\U0001d242-\U0001d244\U0001d25b-\U0001d25c\U0001da00-\U0001da36\U0001da3b-\U0001da6c\U0001da75\U0001da84"
    "\U0001da9b-\U0001daaf\U0001e000-\U0001e02a\U0001e08f\U0001e130-\U0001e136\U0001e2ae\U0001e2ec-\U0001e2ef"
    "\U0001e4ec-\U0001e4ef\U0001e5ee-\U0001e5ef\U0001e6e3\U0001e6e6\U0001e6ee-\U0001e6ef\U0001e6f5"
    "\U0001e8d0-\U0001e8d6\U0001e944-\U0001e94a\U000e0100-\U000e01ef"
    "]"
)
"""Class, in a regular expression, of the combining marks of Unicode 18 that take no column (categories Mn and Me).
Unassigned characters and spacing marks between them count as well."""
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
