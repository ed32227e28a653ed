"""docs/how-to/schedulers.md names the variables that `--endpoint auto` reads and that it changes for workers."""

import re
from pathlib import Path

from node_agent.cli.schedulers import AGENTS_ALONE, FIRST_PORT, PORTS, SCHEDULERS, WORKERS, Source

PAGE = re.sub(r"```.*?```", "", (Path(__file__).parents[3] / "docs/how-to/schedulers.md").read_text(), flags=re.DOTALL)
NAMED = {word.replace("<task>", "*") for code in re.findall("`([^`]+)`", PAGE) for word in re.split("[, ]+", code)}


def test_the_page_names_each_scheduler_in_order() -> None:
    table = PAGE.partition("| scheduler |")[2].partition("\n\n")[0]
    assert [row.name for row in SCHEDULERS] == re.findall(r"^\| ([^|-]+) \|", table, re.MULTILINE)


def test_the_page_names_each_variable() -> None:
    sources = [each for row in SCHEDULERS for each in (*row.job, *row) if isinstance(each, Source)]
    assert {name for source in sources for name in source.variables} - NAMED == set()


def test_the_page_names_what_workers_get_instead() -> None:
    assert set(WORKERS) - NAMED == set()
    assert [each for each in AGENTS_ALONE if not {each, f"{each}*"} & NAMED] == []


def test_the_page_names_the_ports() -> None:
    assert PAGE.count(f"from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}") == 1
    assert PAGE.count(f"between {FIRST_PORT} and {FIRST_PORT + PORTS - 1}") == 1
