"""The glossary has each term once, and the classes that it names are where it says."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in (ROOT / "docs" / "reference" / "glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| term", "|---"))
]


def test_each_term_is_in_the_glossary_once() -> None:
    terms = [term.strip(" `") for row in ROWS for term in re.split("[;,]", row[0])]
    assert [term for term, times in Counter(terms).items() if times > 1] == []


def test_each_class_is_defined_in_the_folder_of_its_line() -> None:
    missing = []
    for terms, _, folders in (row for row in ROWS if len(row) == 3):
        files = [file for folder in re.findall("`(.*?)`", folders) for file in (ROOT / folder).glob("*.py")]
        code = "\n".join(file.read_text() for file in files)
        missing += [
            name for name in re.findall(r"`([A-Z]\w+)`", terms) if not re.search(rf"^class {name}\b", code, re.M)
        ]
    assert missing == []
