"""A supervisor asks simulated servers how the run has ended."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.paths import LEAVE

from node_agent import supervisor, words
from node_agent.features.supervised import Part
from tests.support.certificates import Authority
from tests.support.process_info import until
from tests.support.programs import PATIENCE_S
from tests.unit.node_agent.command_lines import plan

ROOT = Path(__file__).parents[3]


class PlayedServer:
    """Server that gives one answer after another, each on a separate connection, and repeats the last one."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.heads: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        writer.close()


def stream(*data: object) -> bytes:
    """Return an answer with these events."""
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    return head + b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in data)


def phase(name: str, attempt: int = 1) -> dict[str, object]:
    return {"run": {"phase": name, "attempt": attempt}}


def status(**attempts: str) -> bytes:
    """Return an answer with the status of these attempts. `a1` has the number 1."""
    runs = [{"attempt": int(name[1:]), "phase": phase} for name, phase in attempts.items()]
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + json.dumps({"runs": runs}).encode()


@pytest.fixture
async def ends(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[object]:
    """Function that returns how the run ends for a supervisor whose servers give these answers."""
    monkeypatch.setattr(supervisor, "RETRY_S", 0.01)
    listening = []

    async def verdict(*servers: PlayedServer | None, attempt: int = 0, host: str = "127.0.0.1") -> int | None:
        places = []
        for server in servers:
            if server is None:
                places.append("127.0.0.1:1")
                continue
            listening.append(await asyncio.start_server(server.serve, "127.0.0.1", 0, family=socket.AF_INET))
            places.append(f"{host}:{listening[-1].sockets[0].getsockname()[1]}")
        made = plan("--endpoint", ",".join(places), "--run-id", "my run", "-m", "this")
        return supervisor.ENDS.get(
            await asyncio.to_thread(supervisor._end_of_run, made, Part(attempt, "a.1", "s"), "SIGKILL")
        )

    yield verdict
    for each in listening:
        each.close()


def silent(attempt: int = 1) -> dict[str, object]:
    return {"run": {"phase": "running", "attempt": attempt, "health": {"state": "slow", "others": ["silent"]}}}


async def test_a_supervisor_leaves_a_silent_run_once_for_its_dead_agent(ends) -> None:
    refusal, reply = (
        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    )
    server = PlayedServer(stream(silent()), refusal, stream(silent()), reply, stream(silent(), phase("failed")))
    assert await ends(server, attempt=1) == 1
    asked = [head.split(" ")[:2] for head in server.heads]
    assert [path for method, path in asked if method == "POST"] == [LEAVE] * 2


@pytest.mark.parametrize(("attempt", "heard"), [(0, silent()), (1, silent(2)), (1, phase("running"))])
async def test_another_attempt_or_a_run_of_which_an_agent_is_heard_is_not_left(
    ends, attempt: int, heard: dict[str, object]
) -> None:
    server = PlayedServer(stream(heard, phase("running", 3)), status(a1="failed", a2="failed"))
    await ends(server, attempt=attempt or 3)
    assert not any(head.startswith("POST") for head in server.heads)


async def test_the_end_is_that_of_the_run_which_is_asked_for_by_name(ends) -> None:
    server = PlayedServer(stream(phase("waiting"), {"now": 1.0}, phase("running"), phase("failed")))
    assert await ends(server) == 1
    assert "?run_id=my%20run HTTP/1.1" in server.heads[0]


async def test_the_end_is_heard_although_the_name_server_has_become_silent(
    ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers for the first of two questions to the server, and never again."""
    resolve, asked, is_over = socket.getaddrinfo, list[object](), threading.Event()

    def resolve_once(host: bytes | str, *args: Any, **kwargs: Any) -> Any:
        if host != b"server":
            return resolve(host, *args, **kwargs)
        asked.append(host)
        if len(asked) > 1 and not is_over.wait(PATIENCE_S):
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return resolve("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_once)
    monkeypatch.setattr(supervisor, "PATIENCE_S", PATIENCE_S / 2)
    assert await ends(PlayedServer(stream(phase("running")), stream(phase("succeeded"))), host="server") == 0
    await until(lambda: len(asked) > 1)  # the second question is asked in a thread, which may begin later
    is_over.set()


async def test_the_next_server_is_asked_where_one_is_gone(ends) -> None:
    assert await ends(None, PlayedServer(stream(phase("succeeded")))) == 0


@pytest.mark.parametrize(
    "answer",
    [b"", b"what?\r\n\r\n", b"HTTP/1.1 503 Later\r\n\r\n", stream()[:-2], stream(phase("running")) + b"data: {\n\n"],
    ids=["nothing", "no HTTP", "a refusal", "half an answer", "a broken event"],
)
async def test_a_request_without_a_valid_answer_is_repeated(ends, answer: bytes) -> None:
    assert await ends(PlayedServer(answer, answer, stream(phase("succeeded")))) == 0


async def test_a_run_that_is_forgotten_has_no_end(
    ends, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PATIENCE_S", 0.5)
    server = PlayedServer(stream(phase("running"), {"run": None}), stream({"run": None}))
    assert await ends(server) is None
    assert words.supervisor.run_unknown("my run", 0.5) in capfd.readouterr().err


async def test_a_later_attempt_has_another_end(ends) -> None:
    ask = stream(phase("running", 2))
    server = PlayedServer(ask, b"HTTP/1.1 503 Later\r\n\r\n", ask, status(a1="failed", a2="running"))
    assert await ends(server, attempt=1) == 1
    assert "/v1/status?run_id=my%20run" in server.heads[3]


async def test_an_attempt_that_ends_while_it_is_watched_and_is_followed_at_once(ends) -> None:
    server = PlayedServer(stream(phase("running", 4), phase("waiting", 5)), status(a4="succeeded", a5="waiting"))
    assert await ends(server) == 0


async def test_an_attempt_that_is_forgotten_has_no_end(ends, capfd: pytest.CaptureFixture[str]) -> None:
    assert await ends(PlayedServer(stream(phase("running", 3)), status(a2="failed", a3="running")), attempt=1) is None
    assert words.supervisor.attempt_forgotten("my run", 1) in capfd.readouterr().err


async def test_a_server_without_its_old_state_counts_from_zero(ends) -> None:
    server = PlayedServer(stream(phase("running", 1), phase("succeeded", 1)))
    assert await ends(server, attempt=3) == 0


def test_a_signal_after_the_agents_end_does_not_change_the_exit_code() -> None:
    """The signal comes between the agent's end and the supervisor's own, when it cannot be forwarded any more."""
    program = """
import os, signal
from node_agent import agent, supervisor
from tests.unit.node_agent.command_lines import plan

agent.run = lambda *_: 5
waited = os.waitpid

def signalled_afterwards(*args):
    ended = waited(*args)
    os.kill(os.getpid(), signal.SIGTERM)
    return ended

os.waitpid = signalled_afterwards
code = supervisor.run(plan("--standalone", "-m", "this"))
os.kill(os.getpid(), signal.SIGTERM)
raise SystemExit(code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (5, "")


LATER_NOTHING_IS_IMPORTED = """
import os, signal, sys
from importlib.abc import MetaPathFinder
from node_agent import agent, supervisor
from tests.unit.node_agent.command_lines import plan

token, *argv = sys.argv[1:]
plan = plan(*argv, "-m", "this")
imported, may_be_killed = os.pipe()

class Gone(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        raise OSError(24, f"Too many open files: {name}")

def load(load=supervisor.load):
    load()
    sys.meta_path.insert(0, Gone())
    os.unlink(token)
    os.write(may_be_killed, b"1")

def be_killed(*_):
    os.read(imported, 1)
    os.kill(os.getpid(), signal.SIGKILL)

supervisor.load, agent.run = load, be_killed
sys.exit(supervisor.run(plan))
"""
"""Supervisor that cannot import anything after the modules that its agent's death needs."""


async def test_a_supervisor_whose_program_is_gone_still_reports_the_runs_end(
    authority: Authority, tmp_path: Path
) -> None:
    """Another version was installed, or no descriptor is left. The token is gone too, and one server is down."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("server"))
    played = PlayedServer(b"HTTP/1.1 401 Unknown\r\n\r\n", b"", stream(phase("failed")))
    server = await asyncio.start_server(played.serve, "127.0.0.1", 0, family=socket.AF_INET, ssl=context)
    port = server.sockets[0].getsockname()[1]
    token = tmp_path / "token"
    token.write_text("word")
    flags = ("--endpoint", f"localhost:1,localhost:{port}", "--token-file", str(token), "--tls-ca", authority.ca)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LATER_NOTHING_IS_IMPORTED, str(token), *flags,
        stderr=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    _, said = await child.communicate()
    server.close()
    lines = said.decode().splitlines()
    assert [child.returncode, len(lines)] == [1, 2], said.decode()
    assert lines[0].endswith(words.supervisor.agent_killed_run_awaited("SIGKILL", "none"))
    assert lines[1].endswith(words.supervisor.run_has_ended("none", "failed"))
    assert len(played.heads) == 3 and "authorization: bearer word" in played.heads[0].lower()
