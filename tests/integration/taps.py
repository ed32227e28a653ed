"""Every answer that any server gives an agent, in the order of arrival; and what must hold of all of them together."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgpack
from rdzv_protocol import paths
from rdzv_protocol.codec import decode
from rdzv_protocol.messages import Directive, JoinRequest, PollRequest, Reply, Wait

from rdzv_server.cluster.placement import shard_of

TOLD = {paths.JOIN: JoinRequest, paths.POLL: PollRequest}
ANSWERED = (paths.JOIN, paths.POLL, paths.REPORT, paths.LEAVE)


@dataclass(frozen=True)
class Answer:
    """What one server answered to one request."""

    at: float
    server: str
    path: str
    request: bytes
    status: int
    body: bytes

    @property
    def reply(self) -> Reply | None:
        return decode(Reply, self.body) if self.status == 200 and self.path in TOLD else None

    @property
    def run_id(self) -> str:
        return str(msgpack.unpackb(self.request)["run_id"])

    @property
    def asker(self) -> tuple[str, str]:
        request = decode(TOLD[self.path], self.request)
        return request.run_id, request.agent_id


class Answers:
    """All of a test's."""

    def __init__(self, shards: int = 1) -> None:
        self.all: list[Answer] = []
        self._shards = shards

    def check(self) -> None:
        """At most one server acts for a shard, and whichever does says the same."""
        asked = [answer for answer in self.all if answer.path in ANSWERED]
        for shard in range(self._shards):
            self._check([answer for answer in asked if shard_of(answer.run_id, self._shards) == shard])

    def _check(self, answers: list[Answer]) -> None:
        told: dict[tuple[str, str, int], Directive] = {}
        leaders: dict[int, str] = {}
        latest = 0
        for number, answer in enumerate(answers):
            assert answer.status in (200, 421, 503), answer
            if reply := answer.reply:
                assert leaders.setdefault(reply.leadership, answer.server) == answer.server
                assert reply.leadership >= latest, "a leader of the past has answered"
                latest = reply.leadership
                if not isinstance(reply.directive, Wait):
                    key = (*answer.asker, reply.revision)
                    assert told.setdefault(key, reply.directive) == reply.directive
            elif answer.status == 200:
                led = [leadership for leadership, server in leaders.items() if server == answer.server]
                # With shards a leader leaves one to another server and may get it back; without, none does so here.
                is_again = self._shards > 1 and _next_leadership(answers[number:], answer.server) > latest
                assert not led or max(led) == latest or is_again, "a leader of the past has taken a report"


def _next_leadership(answers: list[Answer], server: str) -> int:
    """In which leadership this server replies next."""
    return next((answer.reply.leadership for answer in answers if answer.server == server and answer.reply), 0)


class Tap:
    """A TCP proxy in front of one server that reads the answers."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._pipes: set[asyncio.Task[None]] = set()
        self.target = ("127.0.0.1", 0)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepting = asyncio.current_task()
        assert accepting
        self._pipes.add(accepting)
        try:
            there, to_there = await asyncio.open_connection(*self.target)
        except (OSError, asyncio.CancelledError):
            writer.close()
            return
        finally:
            self._pipes.discard(accepting)
        asked: list[tuple[str, bytes]] = []
        answered = _Http(lambda line, body: self._note(asked.pop(0), line, body))
        requests = _Http(lambda line, body: self._ask(asked, line.split()[1], body))
        for source, sink, http in ((reader, to_there, requests), (there, writer, answered)):
            pipe = asyncio.create_task(_pipe(source, sink, http))
            self._pipes.add(pipe)
            pipe.add_done_callback(self._pipes.discard)

    def _ask(self, asked: list[tuple[str, bytes]], path: str, body: bytes) -> None:
        """A request is on its way to the server."""
        asked.append((path, body))

    def _note(self, asked: tuple[str, bytes], line: str, body: bytes) -> None:
        self._answers.all.append(Answer(time.monotonic(), self.address, *asked, int(line.split()[1]), body))


class _Http:
    """The messages of one direction, each with its length given."""

    def __init__(self, found: Callable[[str, bytes], None]) -> None:
        self._found = found
        self._buffer = b""

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            line, *headers = head.decode().split("\r\n")
            fields = {name.lower(): value for name, _, value in (header.partition(": ") for header in headers)}
            length = int(fields["content-length"])
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            self._found(line, rest[:length])


async def _pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter, http: _Http) -> None:
    with suppress(ConnectionError):
        try:
            while chunk := await source.read(1 << 16):
                http.feed(chunk)
                sink.write(chunk)
                await sink.drain()
        finally:
            sink.close()
