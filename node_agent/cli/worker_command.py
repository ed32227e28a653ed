"""Command of the workers, from SCRIPT and the flags about it. A script or program that cannot run is refused."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from zlib import crc32

from node_agent import words
from node_agent.cli import rendezvous
from node_agent.cli.arguments import Arguments
from node_agent.kernel.config import UsageError
from node_agent.kernel.core.command import LOCAL_RANK, Command

RUN_PATH_OF_1_0 = """\
import os, runpy, sys
del sys.argv[0]
sys.path[:] = [path or os.getcwd() for path in sys.path]
try:
    script = runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code not in (None, 0):
        raise
import atexit, threading
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)
"""
"""Program of `--run-path` in version 1.0. It stays as it is: the fingerprints of all versions are made of it."""
RUN_PATH = RUN_PATH_OF_1_0.replace("""
sys.stdout.flush()
sys.stderr.flush()
""", """
for stream in sys.stdout, sys.stderr:
    getattr(stream, "closed", not stream) or stream.flush()
""")  # fmt: skip
"""Program of `--run-path`. After a success it exits without destroying the script's objects: a process group with
running threads would abort the process. torchrun keeps such a worker until all have finished."""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ELF = b"\x7fELF"
"""First bytes of a compiled program."""
MOST_FIRST_BYTES = 256
"""Bytes of a program at which the kernel looks to start it."""
BINFMT_MISC = "/proc/sys/fs/binfmt_misc"
"""Folder with the kernel's handlers of programs that it does not know itself."""
MOST_SCRIPT_BYTES = 1 << 20
"""Most bytes of a script that are compared with those of another run's."""


def check_flags(arguments: Arguments, *, use_env: bool) -> None:
    """Refuse flags about the command that cannot be used together. Raises `UsageError`."""
    if arguments.no_python and not use_env:
        raise UsageError(words.command.LOCAL_RANK_OF_A_PROGRAM)
    if arguments.value("preload") and arguments.no_python and not arguments.run_path:
        raise UsageError(words.command.preload_without_python(arguments.source("preload")))
    if arguments.value("preload") and arguments.script.startswith("-") and arguments.script != "-c":
        raise UsageError(words.command.preload_without_script(arguments.source("preload"), arguments.script))


def find(arguments: Arguments, environment: Mapping[str, str], *, use_env: bool) -> Command:
    """Return the command as torchrun would start it. Without `use_env` the script's first argument is its local rank.

    Raises `UsageError` if there is no such script or program, so that nothing starts.
    """
    script, after = arguments.script, arguments.args
    if not use_env:
        after = (f"--local-rank={LOCAL_RANK}", *after)
    python: tuple[str, ...] = (sys.executable, "-u", "-c", RUN_PATH)
    compared: tuple[str, ...] = (*python[:-1], RUN_PATH_OF_1_0)
    if not arguments.run_path:
        if arguments.no_python and arguments.module:
            raise UsageError(words.command.MODULE_AND_PROGRAM)
        if arguments.no_python:
            return Command((_program(script, environment),), after, _name(script, arguments.args))
        compared, python = (), (_interpreter(environment), "-u", *(("-m",) if arguments.module else ()))
    if "$" in script:  # torchrun substitutes the local rank there too
        return Command(python, (script, *after), _name(script), compared)
    if not (arguments.exit_with_run and rendezvous.is_our_endpoint(arguments)):
        if python[-1] != "-m":
            _check_script(script)
        elif python[0] == sys.executable:
            _check_module(script)
        # In other cases the run itself fails: other nodes, and a server of the job, wait for its end.
    return Command((*python, script), after, _name(script), (*compared, script) if compared else ())


def content(script: str, arguments: Sequence[str]) -> str:
    """Return a short hash of the script or module, by which two users' `train.py` differ; empty if it is no file here.

    The same content in another folder has the same hash: nodes may have folders of their own.
    """
    script = _behind_shell(script, arguments)
    for path in script, f"{script.replace('.', os.sep)}.py":
        if os.path.isfile(path):
            with suppress(OSError), open(path, "rb") as file:
                return f"{crc32(file.read(MOST_SCRIPT_BYTES)):08x}"
    return ""


def folder() -> str:
    """Return a short hash of the working folder; empty if it is gone."""
    path = _folder()
    return f"{crc32(os.fsencode(path)):08x}" if path else ""


def _behind_shell(script: str, arguments: Sequence[str]) -> str:
    """Return what the workers run: a shell's script, not the shell."""
    return next(iter(arguments), "") if os.path.basename(script) in SHELLS else script


def _name(script: str, arguments: Sequence[str] = ()) -> str:
    """Return the name of what the workers run. Empty after an option of Python."""
    script = _behind_shell(script, arguments)
    return "" if script.startswith("-") else os.path.basename(script)


def _check_module(name: str) -> None:
    """Refuse a module whose package the workers' Python, which is this one, does not find. Imports nothing."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    if name.endswith(".py") and os.path.isfile(name) and not os.path.isdir(name.removesuffix(".py")):
        raise UsageError(words.command.module_is_a_script(name))
    top = name.partition(".")[0]
    with suppress(ValueError, OSError):  # a module without a spec, or a working folder that is gone
        if PathFinder.find_spec(top, [os.getcwd()]) is None and find_spec(top) is None:
            raise UsageError(words.command.no_module(top, _folder()))


def _check_script(script: str) -> None:
    """Refuse a file that Python cannot run. A shell's first line is no proof: installers write such lines into Python
    code.

    A word with a dash is Python's own: an option such as -c, or - for the standard input.
    """
    if script.startswith("-"):
        return
    if os.path.isdir(script):
        if not os.path.isfile(os.path.join(script, "__main__.py")):
            raise UsageError(words.command.no_main(script))
        return
    try:
        with open(script, "rb") as file:
            first = file.readline(256)
            if first.startswith(ELF):
                raise UsageError(words.command.script_is_binary(script))
            interpreter = os.path.basename(first.split()[-1]) if first.startswith(b"#!") else b""
            if interpreter.decode(errors="replace") in SHELLS or script.endswith(".sh"):
                compile(first + file.read(), script, "exec", dont_inherit=True)
    except FileNotFoundError:
        if re.fullmatch(r"python[\d.]*", os.path.basename(script)):
            raise UsageError(words.command.script_is_python(script)) from None
        raise UsageError(words.command.no_script(script, _folder())) from None
    except OSError as error:
        raise UsageError(words.command.script_unreadable(script, error.strerror or str(error))) from None
    except (SyntaxError, ValueError):
        raise UsageError(words.command.script_of_a_shell(script, needs_shell=not interpreter)) from None


def _interpreter(environment: Mapping[str, str]) -> str:
    """Return the workers' Python. Raises `UsageError` if `PYTHON_EXEC` does not name one."""
    name = environment.get("PYTHON_EXEC")
    if not name:
        return sys.executable
    import shutil

    if (found := shutil.which(name, path=environment.get("PATH"))) is None:
        raise UsageError(words.command.no_python(name, _folder()))
    _check_first_line(found, environment)
    return name


def _check_first_line(program: str, environment: Mapping[str, str]) -> None:
    """Refuse a script that cannot be started: its first line does not name an interpreter, or names one that does not
    exist.
    """
    try:
        with open(program, "rb") as file:
            begin = file.read(MOST_FIRST_BYTES)
    except OSError:  # a program may be executable, but not readable
        return
    why = _wrong_first_line(program, begin, environment)
    if why and not _has_handler(program, begin):
        raise UsageError(why)


def _wrong_first_line(program: str, begin: bytes, environment: Mapping[str, str]) -> str:
    """Return why the kernel cannot start a program that begins so, empty if it can."""
    import shutil

    if begin.startswith(BYTE_ORDER_MARK):
        return words.command.byte_order_mark(program)
    first = begin.partition(b"\n")[0].decode(errors="replace")
    named = first.removeprefix("#!").split() if first.startswith("#!") else []
    if not named and b"\0" not in begin:  # else it may be compiled
        return words.command.no_first_line(program)
    if named and first.endswith("\r"):
        return words.command.windows_line_ends(program, named[-1])
    if named and os.path.basename(named[0]) == "env":
        named = [word for word in named[1:2] if not word.startswith("-") and "=" not in word] or named
    if named and shutil.which(named[0], path=environment.get("PATH")) is None:
        return words.command.no_interpreter(program, named[0])
    return ""


def _has_handler(program: str, begin: bytes) -> bool:
    """Return whether binfmt_misc of the kernel starts such a program, by its name or its first bytes."""
    with suppress(OSError):
        handlers = {name: _fields(name) for name in os.listdir(BINFMT_MISC)}
        is_on = "disabled" not in handlers.pop("status", {})
        return is_on and any(_is_handled(fields, program, begin) for fields in handlers.values())
    return False


def _fields(name: str) -> Mapping[str, str]:
    with suppress(OSError), open(f"{BINFMT_MISC}/{name}") as file:
        return dict(line.rstrip("\n").partition(" ")[::2] for line in file)
    return {}  # "register" can only be written


def _is_handled(fields: Mapping[str, str], program: str, begin: bytes) -> bool:
    if "enabled" not in fields:
        return False
    if extension := fields.get("extension"):
        return program.rpartition(".")[2] == extension.removeprefix(".")
    magic = bytes.fromhex(fields.get("magic", ""))
    mask = bytes.fromhex(fields["mask"]) if "mask" in fields else b"\xff" * len(magic)
    part = begin[int(fields.get("offset", 0)) :][: len(magic)]
    is_equal = all(not (a ^ b) & kept for a, b, kept in zip(part, magic, mask, strict=False))
    return bool(magic) and len(part) == len(magic) and is_equal


def _program(name: str, environment: Mapping[str, str]) -> str:
    import shutil

    if (found := shutil.which(name, path=environment.get("PATH"))) is not None:
        _check_first_line(found, environment)
        return found
    if os.path.isdir(name):
        raise UsageError(words.command.program_is_a_folder(name))
    try:
        os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(words.command.no_program(name, _folder())) from None
    except OSError as error:  # its folder is closed to this user, or links form a circle
        raise UsageError(words.command.program_unreachable(name, error.strerror or str(error))) from None
    if os.access(name, os.X_OK):
        raise UsageError(words.command.program_not_in_path(name))
    raise UsageError(words.command.program_not_executable(name))


def _folder() -> str | None:
    """Return the working folder, None if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None
