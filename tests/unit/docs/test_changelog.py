"""CHANGELOG.md tells users of the next release each feature in one line, in the right group."""

import re
from pathlib import Path

CHANGELOG = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()
_, *VERSIONS = CHANGELOG.split("\n## ")
ENTRIES = [line for line in CHANGELOG.splitlines() if line.startswith("- ")]
LONGEST_WORDS = 25
MOST_ENTRIES = 150
LINK = re.compile(r"\]\([^)]*\)")
OF_NO_RELEASE = re.compile(r"Before, |no longer|used to |was lost before")


def test_every_entry_is_one_line_of_a_group() -> None:
    for version in VERSIONS:
        heading, *groups = version.split("\n### ")
        assert "\n- " not in heading, "an entry without a group"
        lines = [line for group in groups for line in group.splitlines()[1:] if line]
        assert [line for line in lines if not line.startswith("- ")] == []


def test_entries_are_unique() -> None:
    assert sorted(ENTRIES) == sorted(set(ENTRIES))


def test_entries_are_few_and_short() -> None:
    sentences = [sentence for entry in ENTRIES for sentence in re.split(r"(?<=[.:]) ", LINK.sub("]", entry[2:]))]
    assert [sentence for sentence in sentences if len(sentence.split()) > LONGEST_WORDS] == []
    assert [version.splitlines()[0] for version in VERSIONS if version.count("\n- ") > MOST_ENTRIES] == []


def test_the_first_release_is_not_compared_with_states_that_nobody_had() -> None:
    assert [line for line in VERSIONS[-1].splitlines() if OF_NO_RELEASE.search(line)] == []
