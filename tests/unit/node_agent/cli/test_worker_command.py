"""Commands that the workers execute."""

import errno
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent import words
from node_agent.cli import worker_command
from node_agent.cli.arguments import FLAGS
from node_agent.cli.parser import Parser
from node_agent.kernel.config import UsageError
from node_agent.kernel.core.command import Command
from tests.support.message_search import pattern
from tests.unit.node_agent.command_lines import complaint, plan

PYTHON = (sys.executable, "-u")


def command(*argv: str, use_env: bool = True, **environment: str) -> Command:
    return plan(*argv, use_env=use_env, **environment).config.command


@pytest.mark.parametrize(
    ("argv", "environment", "expected"),
    [
        ("train.py --lr 1", {}, Command((*PYTHON, "train.py"), ("--lr", "1"))),
        ("--nproc 2 train.py --nproc 9 -- -m", {}, Command((*PYTHON, "train.py"), ("--nproc", "9", "--", "-m"))),
        ("train.py", {"PYTHON_EXEC": "/usr/bin/env"}, Command(("/usr/bin/env", "-u", "train.py"))),
        ("train.py", {"PYTHON_EXEC": ""}, Command((*PYTHON, "train.py"))),
        ("-m json.tool --lr 1", {}, Command((*PYTHON, "-m", "json.tool"), ("--lr", "1"))),
        ("--use-env train.py", {}, Command((*PYTHON, "train.py"))),
        ("-- train.py -- x", {}, Command((*PYTHON, "train.py"), ("--", "x"))),
        ("-m train -- --depth 20", {}, Command((*PYTHON, "-m", "train"), ("--depth", "20"))),
        ("train.py -- -- x", {}, Command((*PYTHON, "train.py"), ("--", "x"))),
        ("train.py --", {}, Command((*PYTHON, "train.py"))),
        ("-- -c print(1)", {}, Command((*PYTHON, "-c"), ("print(1)",))),
        ("--nproc 1 -- -X faulthandler train.py", {}, Command((*PYTHON, "-X"), ("faulthandler", "train.py"))),
        ("- --lr 1", {}, Command((*PYTHON, "-"), ("--lr", "1"))),
        ("--preload torch -- -c print(1)", {}, Command((*PYTHON, "-c"), ("print(1)",))),
    ],
)
def test_a_script_or_a_module(argv, environment, expected):
    assert replace(command(*argv.split(), **environment), name="") == expected


FINGERPRINTS = {
    "train.py": "cf884101",
    "train.py --lr 3 --node-rank 1": "17bb7513",
    "-m http.server 8": "ff6f0fe6",
    "--no-python bash run.sh": "2290289d",
    "-": "52509c06",
    "-- -c print(1)": "08b1ad87",
    "--run-path train.py": "c6d4d9fb",
    "--run-path train.py --lr 3": "9d4d7175",
}
"""Fingerprints of 1.0.0rc1. If they changed, agents of two versions would refuse each other as of other commands."""


@pytest.mark.parametrize(("argv", "fingerprint"), FINGERPRINTS.items())
def test_agents_of_all_versions_have_the_same_fingerprint_of_a_command(argv, fingerprint, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert command(*argv.split()).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("/tmp/../bin/train.py --lr 1", "train.py"),
        ("-m json.tool", "json.tool"),
        ("--run-path train.py", "train.py"),
        ("--no-python sh -c exit", ""),
        ("--no-python sh /home/a/run.sh", "run.sh"),
        ("--no-python sh", ""),
        ("--no-python env A=1", "env"),
        ("-- -c print(1)", ""),
    ],
)
def test_runs_are_distinguished_by_their_programs(argv, name, monkeypatch):
    monkeypatch.setattr("node_agent.cli.worker_command._check_script", lambda script: None)
    assert command(*argv.split()).name == name


@pytest.mark.parametrize("before", [["train.py"], ["-m", "package.train"], ["-r3", "--nproc", "2", "--", "train.py"]])
def test_no_flag_after_the_script_is_read(before):
    """torchrun's argparse and ours would call many of these words ambiguous, or miss a value."""
    spellings = [spelling for flag in FLAGS.values() for spelling in flag.spellings]
    words = {spelling[:end] for spelling in [*spellings, "--help", "--version"] for end in range(1, len(spelling) + 1)}
    assert {"--rank", "--rank-policy", "--p", "-m", "-", "--"} < words
    parser = Parser()
    for word in sorted(words):
        is_dropped = word == "--" and "--" not in before
        _, (_, *alone) = parser.read([*before, word])
        _, (_, *args) = parser.read([*before, "--lr", "1", word, "16"])
        assert alone == ([] if is_dropped else [word])
        assert args == ["--lr", "1", word, "16"]


def test_a_script_that_is_missing_fails_the_run_if_another_node_waits_for_its_end(tmp_path):
    """The job has a server of its own, and TorchX waits for the end of the run."""
    assert command("--exit-with-run", "--endpoint", "host:1", "no.py").program == (*PYTHON, "no.py")
    assert complaint("--exit-with-run", "no.py") == words.command.no_script("no.py", str(tmp_path))


def test_options_of_python_in_the_scripts_place_need_a_python_of_their_own():
    line = complaint("--preload", "torch", "--", "-X", "faulthandler", "train.py")
    assert line == words.command.preload_without_script("--preload", "-X")


def test_a_folder_with_a_main_module_is_a_script(tmp_path):
    (tmp_path / "app").mkdir()
    assert complaint("app") == words.command.no_main("app")
    (tmp_path / "app" / "__main__.py").touch()
    assert command("app").program == (*PYTHON, "app")


def test_a_program_is_looked_for_in_path(tmp_path):
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert command("--no-python", "mine", "-x", PATH=str(tmp_path)) == Command((str(program),), ("-x",), "mine")


def test_a_file_that_cannot_be_executed_is_refused_in_one_line(tmp_path):
    (tmp_path / "run.sh").write_text("#!/usr/bin/env bash\nset -e\npython train.py\n")
    (tmp_path / "folder").mkdir()
    assert complaint("run.sh") == words.command.script_of_a_shell("run.sh", needs_shell=False)
    (tmp_path / "lines.sh").write_text("python train.py\n")
    assert complaint("lines.sh") == words.command.script_of_a_shell("lines.sh", needs_shell=True)
    (tmp_path / "program").write_bytes(b"\x7fELF\x02\x01")
    assert complaint("program") == words.command.script_is_binary("program")
    assert complaint("--no-python", "./run.sh") == words.command.program_not_executable("./run.sh")
    assert complaint("--no-python", "./folder") == words.command.program_is_a_folder("./folder")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n'''exec' python3 \"$0\" \"$@\"\n'''\nimport sys\n")
    assert command("run.sh").program[-1] == "run.sh", "Python that a shell starts is Python"


def test_an_interpreter_that_is_not_there_is_named_before_anything_starts(tmp_path):
    with pytest.raises(UsageError, match=pattern(words.command.no_python, name="/opt/python")):
        command("train.py", PYTHON_EXEC="/opt/python")
    program = tmp_path / "mine"
    program.touch(0o755)
    for first, missing in (("/opt/python -u", "/opt/python"), ("/usr/bin/env nosuchpython", "nosuchpython")):
        program.write_text(f"#!{first}\n")
        with pytest.raises(UsageError, match=pattern(words.command.no_interpreter, interpreter=missing)):
            command("--no-python", "./mine", PATH="/usr/bin:/bin")
    for first in ("#!/bin/sh -e", "#!/usr/bin/env -S sh -e", "#!/usr/bin/env sh", "\x7fELF\0"):
        program.write_text(f"{first}\n")
        assert command("--no-python", "./mine", PATH="/usr/bin:/bin").program == ("./mine",)


@pytest.mark.parametrize("wrapper", [False, True], ids=["--no-python", "PYTHON_EXEC"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"echo\n", words.command.no_first_line), (b"", words.command.no_first_line),
        (b"#!\necho\n", words.command.no_first_line),
        (b"#!/bin/sh\r\necho\r\n", words.command.windows_line_ends),
        (b"#!/usr/bin/env sh\r\n", words.command.windows_line_ends),
        (b"\xef\xbb\xbf#!/bin/sh\n", words.command.byte_order_mark),
    ],
)  # fmt: skip
def test_a_script_that_the_kernel_cannot_start_is_refused_without_blaming_a_node(content, says, wrapper, tmp_path):
    program = tmp_path / "mine"
    program.touch(0o755)
    program.write_bytes(content)
    asked = ("train.py",) if wrapper else ("--no-python", "./mine")
    with pytest.raises(UsageError, match=pattern(says, program="./mine")):
        command(*asked, PATH="/usr/bin:/bin", **({"PYTHON_EXEC": "./mine"} if wrapper else {}))


BY_NAME = "enabled\ninterpreter /bin/sh\nflags: \nextension .mine\n"
BY_MAGIC = "enabled\ninterpreter /bin/sh\nflags: \noffset 1\nmagic 5868\n"


@pytest.mark.parametrize(
    ("entry", "is_started"),
    [
        (BY_NAME, True),
        (BY_NAME.replace(".mine", ".other"), False),
        (BY_NAME.replace("enabled", "disabled"), False),
        (BY_MAGIC, False),
        (f"{BY_MAGIC}mask 00ff\n", True),
        (BY_MAGIC.replace("5868", "6368"), True),
        (BY_MAGIC.replace("offset 1", "offset 255"), False),
        ("enabled\n", False),
    ],
)
def test_a_text_that_a_handler_of_the_kernel_starts_is_not_refused(monkeypatch, tmp_path, entry, is_started):
    monkeypatch.setattr(worker_command, "BINFMT_MISC", str(tmp_path / "handlers"))
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "one").write_text(entry)
    program = tmp_path / "run.mine"
    program.touch(0o755)
    program.write_text("echo\n")
    if is_started:
        assert command("--no-python", "./run.mine").program == ("./run.mine",)
    else:
        with pytest.raises(UsageError, match=pattern(words.command.no_first_line, program="./run.mine")):
            command("--no-python", "./run.mine")


@pytest.mark.parametrize("state", ["enabled", "disabled"])
def test_handlers_of_the_kernel_count_only_while_it_uses_them(monkeypatch, tmp_path, state):
    monkeypatch.setattr(worker_command, "BINFMT_MISC", str(tmp_path / "handlers"))
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "one").write_text(BY_NAME)
    (tmp_path / "handlers" / "status").write_text(f"{state}\n")
    program = tmp_path / "run.mine"
    program.touch(0o755)
    program.write_text("echo\n")
    if state == "enabled":
        assert command("--no-python", "./run.mine").program == ("./run.mine",)
    else:
        with pytest.raises(UsageError, match=pattern(words.command.no_first_line, program="./run.mine")):
            command("--no-python", "./run.mine")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_script_that_may_not_be_read(tmp_path):
    (tmp_path / "train.py").chmod(0)
    assert complaint("train.py") == words.command.script_unreadable("train.py", "Permission denied")


def test_a_program_that_cannot_be_reached(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    reason = os.strerror(errno.ELOOP)
    assert complaint("--no-python", "./loop") == words.command.program_unreachable("./loop", reason)


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert complaint("train.py") == words.command.no_script("train.py", None)


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["no.py"], words.command.no_script),
        (["--run-path", "no.py"], words.command.no_script),
        (["--no-python", "no-such-program"], words.command.no_program),
        (["--no-python", "train.py/program"], words.command.no_program),
        (["-m", "train.py"], words.command.module_is_a_script("train.py")),
        (["-m", "--no-python", "train"], words.command.MODULE_AND_PROGRAM),
        ([], words.cli.see_help(words.cli.NO_SCRIPT)),
        ([""], words.cli.see_help(words.cli.SCRIPT_IS_EMPTY)),
        (["-m", "", "--lr", "1"], words.cli.see_help(words.cli.SCRIPT_IS_EMPTY)),
    ],
)
def test_a_command_line_without_a_program_is_refused(argv, what, tmp_path):
    line = what if isinstance(what, str) else what(argv[-1], str(tmp_path))
    assert complaint("--standalone", *argv) == line


# Its content and folder.


def test_the_content_differs_between_scripts_and_the_folder_between_folders(tmp_path, monkeypatch):
    def hashes(folder: str, content: str, *argv: str) -> tuple[str, str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        Path("train.py").write_text(content)
        join = plan(*argv).config.join
        return join.content, join.folder

    one, a = hashes("a", "1", "train.py")
    two, _ = hashes("a", "2", "train.py", "--lr", "1")
    _, b = hashes("b", "1", "train.py")
    assert len({one, two, a, b}) == 4
    assert hashes("b", "1", "train.py", "--lr", "1") == hashes("b", "1", "-m", "train") == (one, b)
    assert hashes("a", "2", "--no-python", "sh", "train.py") == (two, a)
    assert hashes("a", "1", "-m", "json.tool") == ("", a)


# The local rank.


def test_the_local_rank_replaces_its_placeholder_in_arguments_and_in_the_scripts_name():
    given = command("train_${local_rank}.py", "--out=$local_rank.txt", "$$5", "${HOME}")
    assert given.for_worker(3) == [*PYTHON, "train_3.py", "--out=3.txt", "$5", "${HOME}"]


@pytest.mark.torch
@pytest.mark.parametrize("text", ["${local_rank}", "$local_rank", "$$", "$$$local_rank", "$", "a$b${c}", "100%", "${"])
def test_arguments_are_filled_in_as_torchrun_does(text):
    utils = pytest.importorskip("torch.distributed.elastic.utils")
    assert command("train.py", text).for_worker(3)[3:] == utils.macros.substitute([text], "3")


# torch.distributed.launch, and --run-path.


@pytest.mark.parametrize(
    ("argv", "after"),
    [
        ("train.py --lr 1", ["train.py", "--local-rank=2", "--lr", "1"]),
        ("-m train", ["-m", "train", "--local-rank=2"]),
        ("--use-env train.py", ["train.py"]),
        ("--use_env train.py", ["train.py"]),
    ],
)
def test_launch_passes_the_local_rank_first_unless_it_is_in_the_environment(argv, after):
    assert command(*argv.split(), use_env=False).for_worker(2)[2:] == after


def test_launch_passes_nothing_to_other_programs():
    assert complaint("--no-python", "true", use_env=False) == words.command.LOCAL_RANK_OF_A_PROGRAM
    assert command("--no-python", "--use-env", "true", use_env=False).arguments == ()


def test_run_path_takes_precedence_over_other_flags():
    one = command("--run-path", "train.py", "x", PYTHON_EXEC="/opt/python")
    assert (one.program[0], one.program[-1]) == (sys.executable, "train.py")
    assert command("--run-path", "--no-python", "-m", "train.py", "x") == one
