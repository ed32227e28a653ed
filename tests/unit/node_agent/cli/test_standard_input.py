"""Programs that workers read from standard input."""

import pytest

from node_agent.cli.standard_input import reads_program


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        ("python -u -", True),
        ("python -u - --lr 1", True),
        ("python", True),
        ("bash", True),
        ("/bin/sh -e", True),
        ("python -u train.py", False),
        ("python -u train.py -", False),
        ("python -c pass", False),
        ("python -m train -", False),
        ("bash run.sh", False),
        ("cat", False),
        ("cat -", False),
    ],
)
def test_an_interpreter_without_a_script_reads_its_program_from_stdin(command: str, reads: bool) -> None:
    words = command.split()
    assert reads_program(words, is_python=words[0] == "python") is reads
