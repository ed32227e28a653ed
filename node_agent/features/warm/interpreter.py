"""Start and end of the Python interpreter, for a forked process whose interpreter has already started.

It runs a command as `python COMMAND` would: `__main__` and its file, arguments, the first path entry, exit code and
traceback. It imports nothing of this package. fork_server_helper.py forks the process.
"""

import atexit
import faulthandler
import fcntl
import os
import pkgutil
import random  # noqa: F401 - every fork gives it a seed of its own, once it is imported
import runpy
import signal
import sys
import threading
import types
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from typing import Any

LOWEST_DESCRIPTOR = 200
"""Lowest descriptor for the file of stacks, so that the script's own descriptors begin at 3 as usual."""


def find_modules_for(command: Sequence[str]) -> None:
    """Set the first path entry to the command's."""
    if getattr(sys.flags, "safe_path", False):
        return
    how = _without_options(command)[0]
    if how == "-m":
        sys.path[0] = os.getcwd()
    elif how == "-c":
        sys.path[0] = ""
    else:
        sys.path[0] = os.path.abspath(how) if _is_a_folder_or_archive(how) else os.path.dirname(os.path.realpath(how))


def run_command(
    command: Sequence[str], environment: Mapping[str, str], cpus: Collection[int], stacks: Mapping[str, Any]
) -> None:
    """Run the command. Return when the interpreter should exit with 0.

    `stacks`: `path` of the file for the stacks of all threads, written on the signal `signum`; empty for none.
    """
    if cpus:
        os.sched_setaffinity(0, cpus)
    os.environ.clear()
    os.environ.update(environment)
    _reseed()
    with suppress(OSError, RuntimeError):  # the worker runs even if its stacks cannot be written
        _answer_signal(**stacks)
    sys.orig_argv[:] = command
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        _run(_without_options(command), sys.modules["__main__"])
    except SystemExit:
        raise
    except BaseException as error:
        _die_of(error)


def _answer_signal(path: str, signum: int) -> None:
    """Make faulthandler write the stacks on this signal, unless a module has set its own handler."""
    if not path or signal.getsignal(signum) is not signal.SIG_DFL:
        return
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR)
    finally:
        os.close(opened)
    faulthandler.register(signum, file=descriptor, all_threads=True)


def _reseed() -> None:
    """Renew the random state that every interpreter creates when it imports these modules."""
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()
    if process := sys.modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)


def _without_options(command: Sequence[str]) -> list[str]:
    """Return the command without the interpreter and its options: -m MODULE, -c CODE or SCRIPT, and arguments."""
    rest = list(command[1:])
    while rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        del rest[0]
    return rest


def _is_a_folder_or_archive(script: str) -> bool:
    return pkgutil.get_importer(script) is not None


def _run(command: Sequence[str], main: types.ModuleType) -> None:
    main.__dict__["__builtins__"] = sys.modules["builtins"]
    if command[0] in ("-m", "-c"):
        sys.argv[:] = [command[0], *command[2:]]
    else:
        sys.argv[:] = command
    if command[0] == "-m":
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
    elif command[0] == "-c":
        exec(compile(command[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    elif _is_a_folder_or_archive(command[0]):
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
    else:
        _run_script(os.path.abspath(command[0]), main)


def _run_script(path: str, main: types.ModuleType) -> None:
    is_compiled = path.endswith(".pyc")
    loader = (SourcelessFileLoader if is_compiled else SourceFileLoader)("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader, __annotations__={})
    if is_compiled:
        code = loader.get_code("__main__")
        assert code
    else:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _die_of(error: BaseException) -> None:
    """Exit as the interpreter does after an exception, without these lines in the traceback."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        _finish()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


def _finish() -> None:
    """Wait for threads, run exit handlers and flush, as the interpreter does before SIGINT ends it."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream and not getattr(stream, "closed", False):
            stream.flush()
