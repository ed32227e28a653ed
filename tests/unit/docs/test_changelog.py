"""CHANGELOG.md tells users of the next release each feature in one line, in the right group."""

from pathlib import Path

CHANGELOG = (Path(__file__).parents[3] / "CHANGELOG.md").read_text()


def test_every_entry_is_one_line_of_a_group() -> None:
    _, *versions = CHANGELOG.split("\n## ")
    for version in versions:
        heading, *groups = version.split("\n### ")
        assert "\n- " not in heading, "an entry without a group"
        lines = [line for group in groups for line in group.splitlines()[1:] if line]
        assert [line for line in lines if not line.startswith("- ")] == []


def test_entries_are_unique() -> None:
    entries = [line for line in CHANGELOG.splitlines() if line.startswith("- ")]
    assert sorted(entries) == sorted(set(entries))
