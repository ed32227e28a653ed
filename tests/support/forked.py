"""Programs without the time for their imports: each is a fork of a process that has already imported the modules.

Executed with the names of modules, this file is that process. It takes orders from a socket. An order is a message with
the program's module, words, environment and current folder, and the descriptors of its output and of a pipe. It writes
the program's pid to the pipe, and the exit status when the program has ended. It exits when the socket ends.
"""

import asyncio
import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import termios
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

TORCHRUN = (
    "torch.distributed.run", "torch.distributed.launch",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
)  # fmt: skip
SERVER = ("rdzv_server.__main__", "rdzv_server.*", "rdzv_protocol.words.*")
AGENT = (
    "node_agent.__main__", "node_agent.launch", "node_agent.agent", "node_agent.cli.*", "node_agent.kernel.*",
    "node_agent.features.*", "node_agent.servers.*", "node_agent.words.*", "rdzv_protocol.words.*",
    "rdzv_protocol.inherited", "rdzv_server.server:import_late", "shutil",
)  # fmt: skip
RDZVCTL = ("rdzvctl.__main__", "rdzvctl.*")
"""Modules that one process imports. Those of programs have a function `main`.

`PACKAGE.*` stands for all modules of a package, since programs import most of theirs only when they need them.
`MODULE:FUNCTION` is called.
"""
READ_AT_THE_START = ("LANG", "LC_ALL", "LC_CTYPE", "LD_PRELOAD", "LOGLEVEL", "TORCH_LOGS")
"""Variables that matter when a process starts or torch is imported, like Python's own."""
NEEDS_ITS_MAIN_MODULE = ("--run-path", "--run_path")
IMPORTS = "TEST_IMPORTS"
"""Variable with the path of a file for the modules that a fork has imported itself."""
ROOT = Path(__file__).parents[2]
LONGEST = 1 << 20


def can_fork(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Return whether a fork behaves like a new process."""
    return not {*words}.intersection(NEEDS_ITS_MAIN_MODULE) and not any(
        name in READ_AT_THE_START or (name.startswith("PYTHON") and name != "PYTHON_EXEC") for name in env
    )


# The test's side.


class ForkedProcess:
    """The part of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int, status: asyncio.StreamReader, *streams: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdin = None
        self.stdout, self.stderr = streams
        self._ended = asyncio.create_task(status.read())  # to its end, with which the pipe is closed

    @property
    def returncode(self) -> int | None:
        return os.waitstatus_to_exitcode(int(self._ended.result())) if self._ended.done() else None

    async def wait(self) -> int:
        await asyncio.shield(self._ended)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal as to an unreaped child: it may already be gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def fork(
    modules: tuple[str, ...], module: str, words: Sequence[str], env: Mapping[str, str], cwd: str | Path | None
) -> ForkedProcess:
    """Run the same as `python -m module words`, in a separate session. `module`: one of the imported ones."""
    (out, its_out), (err, its_err) = [await pipe() for _ in range(2)]
    nothing = os.open(os.devnull, os.O_RDWR)
    pid, status = await start(modules, module, words, env, cwd, (nothing, its_out, its_err))
    return ForkedProcess(pid, status, out, err)


async def start(
    modules: tuple[str, ...], module: str, words: Sequence[str], env: Mapping[str, str], cwd: str | Path | None,
    streams: Sequence[int], ignored: Sequence[int] = (),
) -> tuple[int, asyncio.StreamReader]:  # fmt: skip
    """Do the same as `fork`, with these streams as stdin, stdout and stderr. A terminal becomes its controlling one.

    The streams are closed here. `ignored`: signals that the program starts with ignored. Return its pid, and a reader
    for its exit status.
    """
    order = json.dumps([module, [*words], dict(env), str(cwd or os.getcwd()), [*ignored]]).encode()
    status, its_status = await pipe()
    socket.send_fds(ensure_running(modules), [order], [its_status, *streams])
    for descriptor in {its_status, *streams}:
        os.close(descriptor)
    return int(await status.readline()), status


async def pipe() -> tuple[asyncio.StreamReader, int]:
    ours, theirs = os.pipe()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb")
    )
    return reader, theirs


@cache
def ensure_running(modules: tuple[str, ...]) -> socket.socket:
    """Return the socket of the process that imports these modules, started if necessary. It lives as long as this
    process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = (sys.executable, __file__, str(theirs.fileno()), *modules)
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT)
    # Not closed: the copy of a process that a test has forked and left would keep the socket open.
    atexit.register(lambda: (ours.shutdown(socket.SHUT_RDWR), server.wait()))
    return ours


# The process that forks the programs.


def serve(orders: socket.socket, modules: Sequence[str]) -> None:
    """Start a program for each order, and report how it ended."""
    before = dict(os.environ)
    for module in modules:
        load(module)
    for each in weakref.finalize._registry:
        each.atexit = False  # otherwise modules would clean up at the end, for example each of torch's operators
    gc.freeze()  # otherwise the garbage collector of each fork would make the kernel copy all pages
    changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
    selector = selectors.DefaultSelector()
    selector.register(orders, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is orders:
                order, descriptors, _, _ = socket.recv_fds(orders, LONGEST, 4)
                if not order:
                    return
                status, *streams = descriptors
                pid = os.fork()
                if pid == 0:
                    become(changed, streams, *json.loads(order))
                for descriptor in streams:
                    os.close(descriptor)
                os.write(status, f"{pid}\n".encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
            else:
                pid, status = key.data
                selector.unregister(key.fileobj)
                os.close(key.fd)
                os.write(status, f"{os.waitpid(pid, 0)[1]}\n".encode())
                os.close(status)


def load(name: str) -> None:
    """Import a module or all modules of a package, or call a function of a module."""
    module, _, function = name.removesuffix(".*").partition(":")
    imported: Any = importlib.import_module(module)
    if function:
        getattr(imported, function)()
    if name.endswith(".*"):
        for each in pkgutil.walk_packages(imported.__path__, f"{module}."):
            if not each.name.endswith(("__main__", "_helper")):  # programs: some act when they are imported
                importlib.import_module(each.name)


def become(
    changed: Mapping[str, str], streams: Sequence[int], name: str, words: list[str], environment: dict[str, str],
    folder: str, ignored: Sequence[int],
) -> NoReturn:  # fmt: skip
    """Run as the program until its end."""
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  the old one expects a file of the old kind, such as a pipe
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.closerange(3, 1 << 16)
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(changed | environment)
    module: Any = sys.modules[name]
    if report := os.environ.pop(IMPORTS, ""):
        atexit.register(write_imports, report, {*sys.modules})
    sys.argv = [module.__file__, *words]
    sys.path[0] = folder
    end(module.main)


def write_imports(report: str, before: set[str]) -> None:
    """Write the names of the modules that this program has imported itself."""
    Path(report).write_text("\n".join(sorted({*sys.modules} - before)))


def end(main: Callable[[], object]) -> NoReturn:
    """Exit as the interpreter does, without freeing objects, which would copy every page of the imported modules."""
    try:
        code = main()
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":  # without -m: torchrun looks up the source of each frame, which takes long for runpy's
    sys.path[0] = str(ROOT)
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
