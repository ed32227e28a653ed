"""The table of flags compared with torchrun's own parser."""

import argparse
import re

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent.cli.arguments import FLAGS
from node_agent.cli.parser import Parser
from node_agent.kernel.config import UsageError
from tests.unit.node_agent.command_lines import DEFAULTS

DEPENDS = ("rdzv_id", "master_addr")
"""Arguments whose default follows from others."""


def torchruns_actions() -> list[argparse.Action]:
    from torch.distributed.launch import get_args_parser

    return [action for action in get_args_parser()._actions if action.option_strings]


def torchruns_meaning(parser: argparse.ArgumentParser, spelling: str) -> str | None:
    """Return the argument of a torchrun flag, which may be shortened; None if no flag or several match."""
    if spelling in parser._option_string_actions:
        return parser._option_string_actions[spelling].dest
    found = parser._get_option_tuples(spelling)
    return found[0][0].dest if len(found) == 1 else None


def meaning(parser: Parser, name: str) -> str | None:
    """Return the argument of our flag, which may be shortened; None if there is none."""
    spelling = parser.spelling(name)
    return None if spelling is None else parser._option_string_actions[spelling].dest


@pytest.mark.torch
def test_every_option_of_torchrun_is_one_here_under_the_same_name():
    ours = Parser()._option_string_actions
    for action in torchruns_actions():
        for spelling in action.option_strings:
            assert spelling in ours, f"torchrun has {spelling}, node-agent has not"
            assert ours[spelling].dest == action.dest
            assert (ours[spelling].nargs == 0) == (action.nargs == 0), f"{spelling} takes a value on one side alone"


@pytest.mark.torch
def test_our_list_of_torchruns_spellings_is_exact():
    theirs = {spelling for action in torchruns_actions() for spelling in action.option_strings}
    taken = {spelling for flag in FLAGS.values() for spelling in flag.torchruns}
    assert theirs - {"-h", "--help"} == taken - {"--use-env", "--use_env"}  # torch.distributed.launch has these


@pytest.mark.torch
def test_every_prefix_that_torchrun_resolves_means_the_same_here():
    from torch.distributed.launch import get_args_parser

    torchruns, ours = get_args_parser(), Parser()
    resolved = 0
    for action in torchruns_actions():
        for spelling in action.option_strings:
            for end in range(2, len(spelling) + 1):
                if (dest := torchruns_meaning(torchruns, spelling[:end])) is not None:
                    assert meaning(ours, spelling[:end]) == dest, spelling[:end]
                    resolved += 1
    assert resolved > 300


@pytest.mark.torch
def test_a_value_that_is_left_out_is_torchruns_default():
    """A default may also be None if it is the run's or follows from other flags."""
    theirs = {action.dest: action.default for action in torchruns_actions()}
    for dest, flag in FLAGS.items():
        if dest in theirs and DEFAULTS[dest] not in (None, {}) and flag.metavar and dest not in DEPENDS:
            default = flag.read(theirs[dest]) if isinstance(theirs[dest], str) else theirs[dest]
            assert (default or DEFAULTS[dest]) == DEFAULTS[dest]


@pytest.mark.torch
@pytest.mark.parametrize("dest", ["start_method", "numa_binding"])
def test_the_choices_are_torchruns(dest):
    (action,) = (action for action in torchruns_actions() if action.dest == dest)
    assert [FLAGS[dest].read(choice) for choice in action.choices] == list(action.choices)


def test_every_name_has_both_spellings_and_is_one_flags():
    known = Parser()._option_string_actions
    spellings = [(spelling, name) for name, flag in FLAGS.items() for spelling in flag.spellings]
    assert len(spellings) == len(dict(spellings))
    for spelling, name in spellings:
        assert known[spelling].dest == name
        if spelling.startswith("--"):
            assert known["--" + spelling[2:].replace("-", "_")].dest == name


def test_every_exit_code_is_explained():
    (codes,) = re.findall(r"Exit codes: (.*)", " ".join(Parser().format_help().split()))
    assert [int(code) for code in re.findall(r"\d+", codes)] == list(ExitCode)


@pytest.mark.parametrize("columns", [60, 80, 100, 300])
def test_help_fits_the_terminal_and_shows_one_spelling_of_each_name(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = Parser().format_help()
    assert max(map(len, text.splitlines())) <= min(columns, 120)
    assert "--rdzv_endpoint" not in text


@pytest.mark.parametrize(
    ("spelling", "dest"),
    [
        ("--nod", "node_rank"),
        ("--node-r", "node_rank"),
        ("--run", "run_path"),
        ("--v", "virtual_local_rank"),
        ("--redirect", "redirects"),
        ("--endp", "rdzv_endpoint"),
        ("--j", "join_timeout"),
        ("--node-i", "node_id"),
        ("--node_i", "node_id"),
    ],
)
def test_a_flag_may_be_shortened_and_torchruns_go_first(spelling, dest):
    assert meaning(Parser(), spelling) == dest


def test_a_flag_that_could_be_two_of_torchruns_is_refused_with_both():
    with pytest.raises(UsageError, match=r"ambiguous option: --log could match (?=.*--log-dir,)(?=.*--logs-specs)"):
        Parser().read(["--log", "x", "train.py"])
