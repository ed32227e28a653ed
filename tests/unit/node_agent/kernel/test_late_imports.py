"""Libraries that load TLS and other modules when they are used."""

import copy
import gc
import os
import pickle
import re
import subprocess
import sys

import pytest

from node_agent.kernel import late_imports

PROGRAM = """
import sys
from node_agent.kernel import late_imports

late_imports.import_asyncio()
import asyncio, socket
{more}

async def echo(reader, writer):
    writer.write(await reader.read(1000))
    writer.close()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    line = socket.socket()
    line.setblocking(False)
    await asyncio.get_running_loop().sock_connect(line, address)
    reader, writer = await asyncio.open_connection(sock=line)
    writer.write(b"plain")
    print(await reader.read(), "ssl" in sys.modules, "_ssl" in sys.modules)
    writer.close()
    try:
        await asyncio.open_connection(*address, ssl=True)
    except OSError as error:
        print(type(error).__module__, error)
    server.close()

asyncio.run(main())
import ssl
from asyncio import base_events, sslproto
print(ssl.SSLSocket is base_events.ssl.SSLSocket, sslproto.SSLProtocol is base_events.sslproto.SSLProtocol)
"""


def _says(more: str = "") -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(more=more)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_a_connection_by_tls_loads_tls() -> None:
    plain, refused, same = _says()
    assert plain == "b'plain' False False"
    assert refused.startswith("ssl ")
    assert same == "True True"


def test_a_program_that_loads_tls_first_has_all_of_it() -> None:
    assert _says("import ssl")[0] == "b'plain' True True"


HANDLERS = """
import sys
from node_agent.kernel import late_imports

late_imports.import_asyncio()
import asyncio, signal

async def handler():
    pass

async def main():
    loop = asyncio.get_running_loop()
    for number in signal.SIGINT, signal.SIGTERM:
        loop.add_signal_handler(number, loop.stop)
    try:
        loop.add_signal_handler(signal.SIGTERM, handler)
    except TypeError as error:
        print(error, "inspect" in sys.modules)

asyncio.run(main())
import inspect
from asyncio import coroutines
print(coroutines.inspect.signature(main), inspect.signature(main))
"""


def test_handlers_of_signals_are_checked_without_inspect() -> None:
    done = subprocess.run([sys.executable, "-c", HANDLERS], capture_output=True, text=True)
    refused, signatures = done.stdout.splitlines()
    assert refused == "coroutines cannot be used with add_signal_handler() False"
    assert signatures == "() ()"


MESSAGES = """
import sys
from node_agent.kernel import late_imports

late_imports.import_msgspec()
import msgspec
from typing import NotRequired, TypedDict

class Given(TypedDict):
    one: int
    other: NotRequired[int]

late_imports.import_msgpack()
import msgpack
unused = {"platform", "uuid", "typing_extensions", "decimal", "datetime"}
print((unused | {"msgspec.inspect", "msgspec.toml", "msgspec.yaml"}).intersection(sys.modules))
print(msgpack.unpackb(msgpack.packb(msgpack.Timestamp(7)), timestamp=3))
import datetime, decimal, uuid
print(msgspec.json.decode(b'"2026-01-02T03:04:05Z"', type=datetime.datetime))
print(decimal.Decimal("0.1") + 1)
print(msgspec.json.decode(b'{"one": 1}', type=Given), uuid.UUID(int=7).int)
print(msgspec.toml.decode(b'one = 1', type=Given))
print(msgspec.inspect.type_info(int), msgspec.json.schema(int))
"""


SCHEMA = "IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None) {'type': 'integer'}"


def test_messages_are_read_without_typing_extensions() -> None:
    done = subprocess.run([sys.executable, "-c", MESSAGES], capture_output=True, text=True)
    lines = [
        "set()",
        "1970-01-01 00:00:07+00:00",
        "2026-01-02 03:04:05+00:00",
        "1.1",
        "{'one': 1} 7",
        "{'one': 1}",
        SCHEMA,
    ]
    assert done.stdout.splitlines() == lines, done.stderr


COLLECTS = """
import gc, runpy, sys
from node_agent.kernel import late_imports

def end(end=late_imports.end):
    print(gc.isenabled())
    end()
    print(gc.isenabled())

late_imports.end = end
sys.argv = ["node-agent", *sys.argv[1:], "--standalone", "--no-python", "true"]
runpy.run_module("node_agent", run_name="__main__")
"""


@pytest.mark.parametrize("flags", [[], ["--exit-with-run"]])
def test_garbage_is_collected_once_everything_is_imported(flags) -> None:
    done = subprocess.run([sys.executable, "-uc", COLLECTS, *flags], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "True"] * (2 if flags else 1), done.stderr


def test_a_program_that_has_not_begun_keeps_its_garbage_collector() -> None:
    before = gc.get_freeze_count()
    late_imports.end()
    assert gc.isenabled()
    assert gc.get_freeze_count() == before


HTTP = """
import sys
from node_agent.kernel import late_imports

late_imports.begin()
late_imports.import_asyncio()
import node_agent.kernel.transport.http_client
print({"inspect", "dataclasses", "ssl"} & {*sys.modules})
"""


def test_the_http_client_loads_little() -> None:
    done = subprocess.run([sys.executable, "-c", HTTP], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


TRACEBACK = """
from node_agent.kernel import late_imports

late_imports.import_logging()
late_imports.import_asyncio()
import asyncio, logging, subprocess, sys

of_tracebacks = "linecache", "textwrap", "tokenize", "traceback"
print([name for name in ("array", "locale", *of_tracebacks) if name in sys.modules])
import linecache, socket, traceback

async def stack():
    return asyncio.Future()._source_traceback[-1].line

print(asyncio.run(stack(), debug=True))
try:
    raise ValueError("logged")
except ValueError:
    logging.exception("caught")
here, there = socket.socketpair()
socket.send_fds(here, [b"sent"], [1])
print(len(socket.recv_fds(there, 9, 1)[1]))
print(linecache.getline(logging.__file__, 1), end="")
print(subprocess.run(["echo", "text"], capture_output=True, text=True).stdout, end="")
try:
    raise ExceptionGroup("several", [ValueError("one")])
except ExceptionGroup as error:
    print(*traceback.format_exception(error), sep="")
"""


def test_tracebacks_descriptors_and_pipes_of_text_load_what_they_need(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TRACEBACK)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    loaded, stack, descriptors, line, text, *lines = done.stdout.splitlines()
    assert stack == "return asyncio.Future()._source_traceback[-1].line"
    assert "ValueError: logged" in done.stderr and descriptors == "1"
    assert loaded == "[]", done.stderr
    assert line.startswith("# Copyright") and text == "text"
    assert any("ValueError: one" in each for each in lines)


COMPILES = """
from node_agent.kernel import late_imports

def has_compiled():
    return any(each.__module__ == "ast" for each in object.__subclasses__())

late_imports.begin()
late_imports.import_asyncio()
import node_agent.agent, node_agent.cli.main
print(has_compiled())
import msgspec

class Tree(msgspec.Struct):
    parts: "list[Tree]" = []

print(msgspec.json.decode(b'{"parts": [{}]}', type=Tree), has_compiled())
"""


ON_DEMAND = """
import typing

forward_ref = typing.ForwardRef
del typing.ForwardRef


def on_demand(name):
    if name != "ForwardRef":
        raise AttributeError(name)
    return forward_ref


typing.__getattr__ = on_demand
from node_agent.kernel import late_imports

late_imports.import_msgspec()
print("ForwardRef" in vars(typing))
"""


def test_a_python_that_makes_forward_references_on_demand_runs_agents() -> None:
    """Python 3.14 makes them on demand."""
    done = subprocess.run([sys.executable, "-c", ON_DEMAND], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


def test_an_agents_types_are_defined_without_compiling_text() -> None:
    """Python makes 119 types for the first text that is compiled, which takes two milliseconds."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(2):  # the first one may have to compile the modules themselves
        done = subprocess.run([sys.executable, "-c", COMPILES], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False", "Tree(parts=[Tree(parts=[])]) True"], done.stderr


PATTERNS = """
import re
from node_agent.kernel import late_imports

compiled = []
def compile(pattern, flags, compile=re._compiler.compile):
    compiled.append(pattern)
    return compile(pattern, flags)

re._compiler.compile = compile
late_imports.begin()
import logging, string, msgspec
from rdzv_protocol.constraints import Name
print(len(compiled), re.compile is vars(re)["compile"], type(re.compile("a+")).__name__)
print(msgspec.convert("node-1", Name), string.Template("$one").substitute(one=1))
print(logging.Formatter("{message:>3}", style="{").format(logging.makeLogRecord({"msg": "a"})))
try:
    msgspec.convert("a\\u200b", Name)
except msgspec.ValidationError as error:
    print(str(error).partition(" ")[0])
try:
    logging.Formatter("{", style="{")
except ValueError as error:
    print(type(error).__name__)
"""


def test_patterns_of_libraries_and_messages_are_compiled_when_they_are_used() -> None:
    done = subprocess.run([sys.executable, "-c", PATTERNS], capture_output=True, text=True)
    count, *lines = done.stdout.split(maxsplit=1)
    assert int(count) <= 1, "logging checks its own default format"
    assert lines == ["True Pattern\nnode-1 1\n  a\nExpected\nValueError\n"], done.stderr


LIBRARY = """
import re

class Text(str):
    pass

by_name = re.compile(pattern="b+", flags=re.IGNORECASE)
as_bytes = re.compile(b"c", re.IGNORECASE)
of_text = re.compile(Text("d"))
again = re.compile(by_name)
is_pattern = isinstance(by_name, re.Pattern)
replaced = re.sub(by_name, "_", "aBBc")
reached = re.match(as_bytes, b"C").end()
try:
    re.compile("e", flag=1)
except TypeError as error:
    refused = True
"""


def test_a_librarys_patterns_can_be_used_while_it_is_imported(tmp_path, monkeypatch) -> None:
    (tmp_path / "made_up_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    late_imports._import_early("made_up_library", later=())
    library = sys.modules.pop("made_up_library")
    assert library.is_pattern and library.refused and library.again is library.by_name
    assert type(library.by_name) is not re.Pattern and type(library.of_text) is re.Pattern
    assert (library.replaced, library.reached) == ("a_c", 1)
    for pattern in library.by_name, copy.deepcopy(library.by_name), pickle.loads(pickle.dumps(library.by_name)):
        assert pattern.fullmatch("Bb") and re.split(pattern, "aBc") == ["a", "c"] and pattern.pattern == "b+"


def test_messages_are_imported_without_a_change_for_threads_that_compile(tmp_path, monkeypatch) -> None:
    (tmp_path / "msgpack.py").write_text("import re\ncompile = re.compile\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    del sys.modules["msgpack"]
    late_imports.import_msgpack()
    assert sys.modules["msgpack"].compile is re.compile
