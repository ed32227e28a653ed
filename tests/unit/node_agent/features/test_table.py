"""The table of features: each flag is declared once, and features are imported only if they are on."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import node_agent
from node_agent.cli.arguments import FLAGS
from node_agent.features.enabled import UNASKED
from node_agent.features.service_manager import ManagedService
from node_agent.features.supervised import Supervised
from node_agent.features.table import OPTIONS
from node_agent.kernel.feature import Feature, load

HEAVY = [options.feature for options in (*OPTIONS, ManagedService, Supervised)]
OTHER_MEANINGS = {
    "__init__", "__pycache__", "checks", "description", "enabled", "evidence", "hangs", "imports", "queries", "rules",
    "store", "table", "words",
}  # fmt: skip
"""Names of files and folders of features that are everyday words, which other code uses with another meaning."""
IMPORTED = """
import sys
import node_agent.agent, node_agent.cli.main
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


@pytest.mark.parametrize("name", [*HEAVY, *(name for name, _ in UNASKED)])
def test_every_feature_is_there(name: str) -> None:
    assert issubclass(load(name), Feature)


def test_an_agent_without_features_imports_none() -> None:
    modules = [name.partition(":")[0] for name in HEAVY]
    done = subprocess.run([sys.executable, "-c", IMPORTED, *modules], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_help_needs_no_feature_and_no_event_loop() -> None:
    heavy = ("asyncio", "node_agent.agent", "node_agent.kernel.feature")
    command = [sys.executable, "-c", IMPORTED.replace("node_agent.agent, ", ""), *heavy]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == ""


@pytest.mark.parametrize("options", OPTIONS)
def test_a_feature_is_off_without_its_flags(options: type) -> None:
    assert not options().is_on


def test_only_the_table_of_features_names_one() -> None:
    package = Path(node_agent.__file__).parent
    files = [package / each for each in ("agent.py", "cli/main.py", "cli/parser.py")]
    files += [file for folder in ("kernel", "servers") for file in (package / folder).rglob("*.py")]
    assert len(files) > 40
    names = {path.stem for path in (package / "features").iterdir()} - OTHER_MEANINGS
    assert len(names) > 10
    a_name = re.compile(rf"(?<![a-z])({'|'.join(names)})(?![a-z])")
    for text in (file.read_text() for file in files):
        assert set(re.findall(r"node_agent\.features\.(\w+)", text)) <= {"enabled", "queries", "table"}
        assert not a_name.findall(_without_texts(text).replace("--metrics-per-run", "").lower())
        assert "numa" not in text.lower()
        assert not re.findall(r"config\.options\(", text)


@pytest.mark.parametrize("flag", [name for options in OPTIONS for name in options.__annotations__ if name in FLAGS])
def test_a_features_flag_is_named_in_at_most_two_files(flag: str) -> None:
    word = re.compile(rf"(?<![\w-]){flag}(?!\w)")
    code = {path for path, text in _code().items() if word.search(text)}
    folders = {path.parent if "features" in path.parts else path for path in code}
    assert len(folders) <= 2, folders


@cache  # each flag asks
def _code() -> dict[Path, str]:
    """Return the code of each file of the agent that makes no messages."""
    files = Path(node_agent.__file__).parent.rglob("*.py")
    return {path: _without_texts(path.read_text()) for path in files if "words" not in (path.stem, path.parent.name)}


def _without_texts(code: str) -> str:
    """Return code without docstrings and comments, which may name a flag."""
    return re.sub(r'""".*?"""|#.*', "", code, flags=re.S)
