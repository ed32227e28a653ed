"""Each program has a short page of help and a full one."""

import re

import pytest

from node_agent.cli.parser import Parser
from rdzv_server.cli import make_parser

FLAG = re.compile(r"^  (?:-\w, )?(?:--[a-z-]+, )?(--[a-z-]+)", re.M)


def page(parser, flag, capsys):
    with pytest.raises(SystemExit, match="0"):
        parser.parse_args([flag])
    return capsys.readouterr().out


@pytest.mark.parametrize("make", [Parser, make_parser])
def test_the_short_page_shows_few_flags_three_examples_and_the_way_to_all_flags(make, capsys):
    short, full = (page(make(), flag, capsys) for flag in ("--help", "--help-all"))
    assert page(make(), "-h", capsys) == short
    assert 15 <= len(FLAG.findall(short)) <= 26
    assert set(FLAG.findall(short)) < set(FLAG.findall(full))
    assert len(re.findall(r"^  (?:srun .*)?(?:node-agent|rdzv-server) .*", short, re.M)) in (3, 4)
    assert short.splitlines()[-1].endswith(f"{make().prog} --help-all")


@pytest.mark.parametrize("make", [Parser, make_parser])
def test_the_full_page_shows_every_flag(make, capsys):
    full = page(make(), "--help-all", capsys)
    flags = {name for action in make()._actions for name in action.option_strings if "_" not in name}
    assert [name for name in flags if not re.search(rf"(?<![\w-]){name}(?![\w-])", full)] == []
