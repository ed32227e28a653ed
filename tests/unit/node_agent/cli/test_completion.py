"""Completion scripts of `--print-completion`, made by `shtab` if it is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rdzv_protocol.words import flags


def asks(*argv: str, module: str = "node_agent", **environment: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", module, *argv)
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)


def bash(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(("bash", "-c", script), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("shell", "begins"),
    [
        ("bash", "complete -o "),
        ("zsh", "#compdef node-agent"),
        ("tcsh", "complete node-agent "),
        ("fish", "complete -c node-agent "),
    ],
)
def test_a_shell_gets_a_script_that_it_can_read(shell: str, begins: str, tmp_path: Path) -> None:
    printed = asks("--print-completion", shell)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert any(line.startswith(begins) for line in printed.stdout.splitlines())
    assert "rdzv-endpoint" in printed.stdout
    if shutil.which(shell):
        script = tmp_path / "completion"
        script.write_text(printed.stdout)
        read = subprocess.run((shell, "-n", str(script)), capture_output=True, text=True, timeout=60)
        assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize(
    ("program", "begun", "flag"),
    [
        ("node-agent", "--standa", "--standalone"),
        ("rdzv-server", "--exit-when", "--exit-when-idle"),
        ("rdzvctl", "--endp", "--endpoint"),
        ("rdzvctl", "uncor", "uncordon"),
    ],
)
def test_bash_completes_a_flag(tmp_path: Path, program: str, begun: str, flag: str) -> None:
    script = tmp_path / "completion"
    script.write_text(asks("--print-completion=bash", module=program.replace("-", "_")).stdout)
    completed = bash(
        f"source {script}; function=$(complete -p {program} | sed 's/.*-F //; s/ .*//'); "
        f"COMP_WORDS=({program} {begun}); COMP_CWORD=1; $function {program} {begun} {program}; "
        'echo "${COMPREPLY[@]}"'
    )
    assert (completed.stdout.strip(), completed.stderr) == (flag, "")


def test_without_shtab_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "shtab.py").write_text("raise ImportError\n")
    printed = asks("--print-completion", "bash", PYTHONPATH=str(tmp_path))
    assert (printed.returncode, printed.stdout) == (1, "")
    assert printed.stderr == flags.needs_shtab("node-agent", "--print-completion") + "\n"


def test_an_unsupported_shell_is_refused() -> None:
    printed = asks("--print-completion", "powershell")
    assert printed.returncode == 2
    assert printed.stderr.startswith(
        "node-agent: error: --print-completion: invalid choice: 'powershell' (choose from 'bash'"
    )
