"""docs/reference/rdzvctl.md lists the existing commands, and shows the file of contexts."""

import re
from pathlib import Path

from rdzvctl import contexts
from rdzvctl.cli import all_commands

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "rdzvctl.md").read_text()


def test_the_page_has_every_command() -> None:
    named = {words.split()[0] for words in re.findall(r"`rdzvctl ([a-z].*?)`", PAGE)}
    assert {command.name for command in all_commands()} <= named | {"config"}


def test_the_page_shows_the_file_as_it_is_written(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "config.toml"
    path.write_text(shown)
    contexts.load(str(path)).write()
    assert path.read_text().replace('[contexts."lab"]', "[contexts.lab]") == shown
