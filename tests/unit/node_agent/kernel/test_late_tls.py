"""asyncio that loads TLS when a connection needs it."""

import subprocess
import sys

PROGRAM = """
import sys
from node_agent.kernel import late_tls

late_tls.import_asyncio()
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


def test_a_plain_connection_loads_no_tls_and_one_by_tls_loads_it() -> None:
    plain, refused, same = _says()
    assert plain == "b'plain' False False"
    assert refused.startswith("ssl ")
    assert same == "True True"


def test_who_loads_tls_before_has_all_of_it() -> None:
    assert _says("import ssl")[0] == "b'plain' True True"


def test_an_agent_on_plain_http_loads_no_tls() -> None:
    program = """
import runpy, sys
sys.argv = ["node-agent", "--standalone", "--no-python", "true"]
try:
    runpy.run_module("node_agent", run_name="__main__")
except SystemExit as end:
    print(end.code, "asyncio" in sys.modules, "ssl" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 True False\n", done.stderr
