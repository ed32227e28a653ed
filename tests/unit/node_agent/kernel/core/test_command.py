"""Fingerprint of a command: the same on every node of a run."""

import pytest

from node_agent.kernel.core.command import Command


def fingerprint(program: str, arguments: str = "") -> str:
    return Command(tuple(program.split()), tuple(arguments.split())).fingerprint


BASE = fingerprint("/usr/bin/python3 -u train.py", "--lr 0.1 --node-rank 0 --host=a data/x")


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("/opt/env/bin/python3 -u /home/b/train.py", "--lr 0.1 --node-rank 1 --host=b /scratch/x"),
        ("/usr/bin/python3 -u train.py", "--lr 0.1 --node-rank --host= data/x"),
    ],
)
def test_values_that_differ_between_nodes_are_left_out(program: str, arguments: str) -> None:
    assert fingerprint(program, arguments) == BASE


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("/usr/bin/python3 -u eval.py", "--lr 0.1 --node-rank 0 --host=a data/x"),
        ("/usr/bin/python3 -u train.py", "--lr 0.2 --node-rank 0 --host=a data/x"),
        ("/usr/bin/python3 -u train.py", "--lr 0.1 --host=a data/x"),
        ("/usr/bin/python3 -u train.py", "--lr 0.1 --node-rank 0 --host=a data/y"),
    ],
)
def test_any_other_difference_makes_commands_differ(program: str, arguments: str) -> None:
    assert fingerprint(program, arguments) != BASE


def test_without_a_command_there_is_no_fingerprint() -> None:
    assert fingerprint("") == ""
    assert len(BASE) == 8
