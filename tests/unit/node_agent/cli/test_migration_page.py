"""docs/how-to/migrate-from-torchrun.md agrees with the parsers; every page's command lines are valid."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.cli import rendezvous
from node_agent.cli.arguments import FLAGS, SETTINGS, Arguments
from node_agent.cli.command_line import read
from node_agent.cli.parser import Parser
from node_agent.flags import BACKENDS, Nodes
from rdzv_server.cli import make_parser

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "how-to" / "migrate-from-torchrun.md").read_text()
WITHOUT_DIFFERENCES = re.sub("<!-- Made by.*?<!-- end -->", "", PAGE, flags=re.DOTALL)
"""The page without the table of differences. tests/parity runs the table's command lines, some of which are invalid."""
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*/*.md"), *(ROOT / "deploy").rglob("*.md")]
PAGES += (ROOT / "examples").rglob("*.md")
SHELL = {
    "exec $agent": "node-agent", "$(grep -c . hosts)": "4", "SERVER": "gpu-1",
    "$head": "gpu-1", "$SLURM_NNODES": "4", "$SLURM_NODEID": "1", "$SLURM_JOB_ID": "4711", "$HOME": "/home/ada",
    "HOST": "gpu-1", " R ": " 1 ", "...": "train.py",
}  # fmt: skip
"""Values that replace these names, by a shell or a reader."""


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def rows(first: str) -> Iterator[list[str]]:
    """Yield the cells of the table with this first heading, without the headings."""
    table = PAGE.split(f"\n| {first} |", 1)[1].split("\n\n", 1)[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def command_lines(program: str, page: str) -> list[list[str]]:
    """Return the arguments of each command line on a page."""
    shell = "\n".join(block for language in ("console", "bash", "sh") for block in blocks(language, page))
    shell = shell.replace("\\\n", " ") + "\n" + "\n".join(re.findall(rf"`({program} [^`]+)`", page))
    for name, value in SHELL.items():
        shell = shell.replace(name, value)
    lines = re.findall(rf"(?<![\w=-]){program} -[^\n&<]*", re.sub("[\"']", "", shell))
    manifests = [json.loads(command) for command in re.findall(r"command: (\[.*?\])\n", page, re.DOTALL)]
    words = [*(shlex.split(line, comments=True) for line in lines), *manifests]
    told = (["--help"], ["--help-all"], ["--version"])
    return [rest for first, *rest in words if first == program and rest[:1] not in told]


def on_all_pages(program: str) -> list[list[str]]:
    return [line for page in PAGES for line in command_lines(program, page.read_text())]


@pytest.fixture(autouse=True)
def nobody_looks_names_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node_agent.kernel.transport.this_machine.names_this_machine", lambda host: False)


def understood(words: list[str], environment: dict[str, str] | None = None) -> Arguments:
    """Return the arguments as the agent understands them. Raises `UsageError` for invalid ones."""
    asked = read(words, environment or {})
    if not rendezvous.is_for_the_scheduler(asked):
        rendezvous.find(asked)
    return asked


@pytest.mark.torch
def test_the_table_has_every_flag_of_torchrun_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)  # torch's parser uses them as defaults
    theirs = {}
    for action in get_args_parser()._actions:
        names = tuple(name for name in action.option_strings if "_" not in name)
        silent = action.default is None or action.default is False or action.default == []
        if names and "--help" not in names:
            theirs[names] = "" if silent else str(action.default)
    assert {tuple(quoted(flag)): "".join(quoted(default)) for flag, default, _ in rows("flag | default")} == theirs


def test_the_tables_have_every_flag_that_help_explains() -> None:
    cells = [cells[0] for table in ("flag | default", "flag | what for") for cells in rows(table)]
    told = [name for cell in cells for name in quoted(cell)]
    known = {name for flag in FLAGS.values() for name in (flag.torchruns or flag.names) if "_" not in name}
    assert sorted(told) == sorted(known)
    shown = Parser().format_help()
    assert [name for name in told if name not in shown] == []


def test_the_tables_have_every_backend_and_setting() -> None:
    backends = [name for cells in rows("`--rdzv-backend` | server") for name in quoted(cells[0])]
    assert sorted(backends) == sorted(BACKENDS)
    settings = [name for cells in rows("`--rdzv-conf` | here") for name in quoted(cells[0])]
    torchs = {key for key, flag in SETTINGS.items() if not flag.help or flag.is_key}
    assert sorted(settings) == sorted(torchs | {"join_timeout", "last_call_timeout"})


def test_the_command_lines_are_valid() -> None:
    lines = [line for line in on_all_pages("node-agent") if line != ["--standalone"]]  # the name of a benchmark
    assert len(lines) >= 20
    for line in lines:
        understood(line)


def test_a_torchrun_line_is_a_good_one_here() -> None:
    lines = command_lines("torchrun", WITHOUT_DIFFERENCES)
    assert len(lines) >= 5
    for line in lines:
        understood(line)


@pytest.mark.torch
def test_torchrun_takes_its_lines() -> None:
    from torch.distributed.run import get_args_parser

    for line in command_lines("torchrun", WITHOUT_DIFFERENCES):
        get_args_parser().parse_args(line)


def test_the_servers_command_lines_are_valid() -> None:
    lines = on_all_pages("rdzv-server")
    assert len(lines) >= 10
    for line in lines:
        make_parser().parse_args(line)


def test_kubeflows_variables_are_understood() -> None:
    (variables,) = blocks("ini")
    asked = understood(["train.py"], dict(line.split("=", 1) for line in variables.splitlines()))
    assert (asked.nnodes, asked.nproc_per_node, asked.value("max_restarts")) == (Nodes(1, 4), 8, 100)
    assert rendezvous.find(asked).endpoint == ("nightly-worker-0", 23456)


def test_every_page_that_it_names_is_there() -> None:
    for name in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs/how-to" / name).is_file(), name
