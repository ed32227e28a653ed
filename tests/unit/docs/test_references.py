"""Files, headings, tests, decision records and layers that the pages name exist."""

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest

from node_agent.words.connection import Stage

ROOT = Path(__file__).parents[3]
FOLDERS = ("rdzv_server", "node_agent", "rdzvctl", "protocol", "tests", "benchmarks", "examples", "deploy", "docs")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
NAMED = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`")
LINKED = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
TESTED = re.compile(r"\btest_\w+")
DECIDED = re.compile(r"\bADR (\d+)")
TESTS = [*(ROOT / "tests").rglob("test_*.py")]
KNOWN_TESTS = {path.stem for path in TESTS} | {
    name for path in TESTS for name in re.findall(r"def (test_\w+)", path.read_text())
}
RECORDS = {int(path.name[:4]) for path in (ROOT / "docs/development/adr").glob("0*.md")}


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_everything_that_a_page_names_exists() -> None:
    missing = {page.relative_to(ROOT).as_posix(): names for page in PAGES if (names := missing_of(page))}
    assert missing == {}


def missing_of(page: Path) -> list[str]:
    """Return what the page names although it does not exist."""
    text = page.read_text()
    missing = [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    for path, heading in LINKED.findall(text):
        linked = page.parent / path if path else page
        if not linked.exists() or (heading and heading not in headings(linked)):
            missing.append(f"{path}#{heading}")
    missing += {name for name in TESTED.findall(text) if name not in KNOWN_TESTS}
    missing += {f"ADR {number}" for number in DECIDED.findall(text) if int(number) not in RECORDS}
    return missing


@pytest.mark.parametrize("folder", FOLDERS)
def test_decision_records_that_the_code_names_are_there(folder: str) -> None:
    named = {int(number) for path in (ROOT / folder).rglob("*.py") for number in DECIDED.findall(path.read_text())}
    assert named - RECORDS == set()


def test_the_layers_of_the_architecture_page_match_the_checked_ones() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    declared = {
        contract["containers"][0]: " > ".join(contract["layers"])
        for contract in contracts
        if contract["type"] == "layers"
    }
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    shown = dict(re.findall(r"^([\w.]+) +(\w+ (?:>|\|) .+)$", page, re.MULTILINE))
    assert shown == declared


def test_contributing_names_every_folder_of_tests() -> None:
    folders = {f"tests/{folder.name}/" for folder in (ROOT / "tests").iterdir() if any(folder.glob("*.py"))}
    assert folders - set(NAMED.findall((ROOT / "CONTRIBUTING.md").read_text())) == set()


def test_contributing_names_the_number_of_tests_that_run_at_a_time() -> None:
    number = {"2": "two", "3": "three", "4": "four", "5": "five", "6": "six", "8": "eight"}
    named = re.findall(r"(\w+) tests at a time", (ROOT / "CONTRIBUTING.md").read_text())
    made = re.findall(r"WORKERS \?= (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(number[workers] for workers in made)


def test_the_stages_of_a_connection_that_the_operations_page_names_are_those_that_agents_log() -> None:
    page = (ROOT / "docs/how-to/troubleshoot.md").read_text()
    (named,) = re.findall(r"The word before the colon names the step that failed: (.+?)\. ", page)
    assert set(re.findall("`([^`]+)`", named)) <= set(get_args(Stage))


def test_decision_records_are_numbered_in_a_row_by_name_and_heading() -> None:
    records = sorted((ROOT / "docs/development/adr").glob("0*.md"))
    numbers = list(range(1, len(records) + 1))
    assert [int(record.name[:4]) for record in records] == numbers
    assert [int(re.match(r"# (\d+)\. ", record.read_text())[1]) for record in records] == numbers


def test_the_record_about_dependencies_names_each_dependency() -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = chain.from_iterable(tables["project"]["optional-dependencies"].values())
    needed = [*tables["project"]["dependencies"], *tables["build-system"]["requires"], *extras]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in needed} - {"rdzv-server"}
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/development/adr/0006-dependencies.md").read_text(), re.MULTILINE)
    assert names - set(re.findall(r"[\w-]+", " ".join(rows))) == set()
