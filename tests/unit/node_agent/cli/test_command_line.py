"""Command lines that need no parser."""

import subprocess
import sys

import pytest

from node_agent.cli.arguments import FLAGS
from node_agent.cli.command_line import parsed, plain, up_to_script
from tests.support.cases import case

SPELLINGS = [(spelling, flag) for flag in FLAGS.values() for spelling in flag.spellings]
PLAIN = (
    ["train.py"],
    ["train.py", "--lr", "0.1", "--", "-x"],
    ["train.py", "--", "--depth", "20"],
    ["--standalone", "--nproc", "2", "train.py"],
    ["--nnodes=2", "--nproc-per-node=4", "--standalone", "-m", "package.train"],
    ["--run-id", "a", "--run_id", "b", "--rdzv-conf", "a=1,b=2", "train.py"],
    ["-r", "3", "-t", "0:1", "train.py"],
)
OTHERS = (
    [], [""], ["--", "train.py"], ["-"], ["--nproc"], ["--nproc", "2"], ["--nproc", "-1", "train.py"],
    ["--nproc=", "train.py"], ["--nproc", "", "train.py"], ["--standalone=1", "train.py"], ["-r3", "train.py"],
    ["--nproc_per-node", "2", "train.py"], ["--nod", "1", "train.py"], ["--zeus", "train.py"], ["-h"], ["--version"],
)  # fmt: skip


@pytest.mark.parametrize("argv", PLAIN)
def test_a_plain_command_line_is_read_as_the_parser_does(argv) -> None:
    assert plain(argv) == parsed(argv)


def test_every_flag_is_plain_in_each_spelling() -> None:
    for spelling, flag in SPELLINGS:
        once = [spelling, "1"] if flag.metavar else [spelling]
        for argv in [[*once, "train.py"], [*once, *once, "train.py", "-x"]]:
            with case(argv):
                assert plain(argv) == parsed(argv)


@pytest.mark.parametrize("argv", OTHERS)
def test_command_lines_that_are_not_plain_are_left_to_the_parser(argv) -> None:
    assert plain(argv) is None


@pytest.mark.parametrize(
    ("given", "script_args"),
    [
        (["--nproc", "2", "--log-dir=/logs", "/code/train.py"], ["--data", "/data", "/more"]),
        (["-m", "train", "--"], ["/data"]),
        (["/code/train.py"], []),
        (["--nproc", "2"], []),
    ],
)
def test_the_words_up_to_the_script_do_not_include_its_arguments(given: list[str], script_args: list[str]) -> None:
    assert up_to_script([*given, *script_args]) == given


def test_a_plain_command_line_does_not_load_the_parser() -> None:
    program = """
import sys
from node_agent.cli.command_line import read
read(["--nproc", "2", "train.py"], {})
print("argparse" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
