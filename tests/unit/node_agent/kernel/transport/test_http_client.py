"""HTTP client: which answers it accepts and refuses, and what it sends."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent import words
from node_agent.kernel.transport import http_client
from node_agent.kernel.transport.http_client import (
    FAILURES,
    MOST_FRAMING_BYTES,
    PART_BYTES,
    Head,
    HttpConnection,
    HttpError,
)
from tests.support.cases import case
from tests.support.message_search import has_message
from tests.support.process_info import until

MOST_BYTES = 300_000
LONG_S = 60.0


class Peer:
    """Server that answers requests one after another with these bytes, for any request."""

    def __init__(self, answers: Sequence[bytes], *, closes: bool) -> None:
        self._answers, self._closes = answers, closes
        self.requests: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.is_done = asyncio.Event()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in self._answers:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
            if self._closes:
                writer.close()
            self.requests += filter(None, [await reader.read()])
        writer.close()
        self.is_done.set()


@asynccontextmanager
async def connected(*answers: bytes, closes: bool = False) -> AsyncIterator[tuple[HttpConnection, Peer]]:
    peer = Peer(answers, closes=closes)
    server = await asyncio.start_server(peer.talk, "127.0.0.1", 0)
    connection = HttpConnection(await asyncio.open_connection(*server.sockets[0].getsockname()), MOST_BYTES)
    try:
        async with asyncio.timeout(LONG_S):
            yield connection, peer
    finally:
        connection.close()
        await peer.is_done.wait()
        server.close()


async def exchanged(connection: HttpConnection) -> tuple[Head, bytes]:
    return await connection.ask("GET", "/", [("Host", "a")]), await connection.body()


# Answers that are accepted.

OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = OK + b"Content-Length: 3\r\n\r\nabc"
IN_CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
OFFER = b"Upgrade: h2c\r\nConnection: upgrade\r\n"
WHOLE: dict[str, tuple[bytes, int, bytes]] = {
    "plain": (PLAIN, 200, b"abc"),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", 200, b""),
    "spaces around a value": (OK + b"Content-Length: \t3 \r\n\r\nabc", 200, b"abc"),
    "in chunks": (IN_CHUNKS, 200, b"abc"),
    "in chunks, by a name in capitals": (IN_CHUNKS.replace(b"chunked", b"CHUNKED"), 200, b"abc"),
    "a chunk with an extension, and a trailer": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nETag: 9\r\n\r\n", 200, b"abc",
    ),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", 304, b""),
    "no reason": (PLAIN.replace(b" OK", b""), 200, b"abc"),
    "after interim answers": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nContent-Length: 9\r\n\r\n"
        b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + PLAIN, 200, b"abc",
    ),
    "with an offer to change the protocol": (OK + OFFER + b"Content-Length: 3\r\n\r\nabc", 200, b"abc"),
    "empty, with an offer to change the protocol": (OK + OFFER + b"Content-Length: 0\r\n\r\n", 200, b""),
    "HTTP/1.0 that keeps the connection": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc",
    ),
}  # fmt: skip
"""Answer, status and body, after which the connection can be used again."""
LAST: dict[str, tuple[bytes, int, bytes]] = {
    "announced close": (OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc"),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc"),
    "data after the answer": (PLAIN + b"SSH", 200, b"abc"),
    "data after an announced close": (OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nabcdef", 200, b"abc"),
    "two answers to one request": (PLAIN + b"HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx", 200, b"abc"),
}
"""The same, but the connection must not be used again."""
UNTIL_CLOSE = (OK + b"\r\nabc", 200, b"abc")
SIZES = [1, 7, PART_BYTES]


@pytest.mark.parametrize("most", SIZES)
@pytest.mark.parametrize("name", WHOLE)
async def test_a_valid_answer_is_read_and_the_connection_serves_again(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "PART_BYTES", most)
    answer, status, body = WHOLE[name]
    async with connected(answer, PLAIN) as (connection, peer):
        head, read = await exchanged(connection)
        assert (head.status_code, read) == (status, body)
        assert connection.is_reusable and not connection.is_over
        assert await connection.part() == b"", "the end stays the end"
        assert (await exchanged(connection))[1] == b"abc"
    assert len(peer.requests) == 2


@pytest.mark.parametrize("name", LAST)
async def test_after_such_an_answer_the_connection_is_not_used_again(name: str) -> None:
    answer, status, body = LAST[name]
    async with connected(answer) as (connection, _):
        head, read = await exchanged(connection)
        assert (head.status_code, read) == (status, body)
        assert not connection.is_reusable


@pytest.mark.parametrize("most", SIZES)
async def test_an_answer_without_a_length_ends_with_the_connection(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "PART_BYTES", most)
    answer, status, body = UNTIL_CLOSE
    async with connected(answer, closes=True) as (connection, _):
        head, read = await exchanged(connection)
        assert (head.status_code, read) == (status, body)
        assert not connection.is_reusable


async def test_parts_arrive_before_the_answer_ends() -> None:
    async with connected(IN_CHUNKS[:-12]) as (connection, peer):
        await connection.ask("GET", "/", [])
        assert await connection.part() == b"ab"
        peer.writers[0].write(IN_CHUNKS[-12:])
        assert [await connection.part(), await connection.part()] == [b"c", b""]


async def test_headers_are_found_by_name_in_lower_case() -> None:
    answer = OK + b"ETag: 7\r\nA: one\r\nContent-Length: 0\r\na: tw\xf6\r\n\r\n"
    async with connected(answer) as (connection, _):
        head, _ = await exchanged(connection)
    assert head.headers == {"etag": "7", "a": "one, twö", "content-length": "0"}


# Answers that are refused.


def chunked(body: bytes) -> bytes:
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + body


def with_header(line: bytes) -> bytes:
    return OK + b"Content-Length: 3\r\n" + line + b"\r\n\r\nabc"


ENDS = b"3\r\nabc\r\n0\r\n\r\n"
INVALID = {
    "both ends": OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + ENDS,
    "both ends in the other order": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + ENDS,
    "two lengths": with_header(b"Content-Length: 4"),
    "a length twice": with_header(b"Content-Length: 3"),
    "a list of lengths": OK + b"Content-Length: 3, 3\r\n\r\nabc",
    "a length with a sign": OK + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": OK + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": OK + b"Content-Length: 0x3\r\n\r\nabc",
    "an empty length": OK + b"Content-Length: \r\n\r\nabc",
    "a length beyond 64 bits": OK + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "a space before the colon": OK + b"Content-Length : 3\r\n\r\nabc",
    "a folded header": with_header(b"A: b\r\n c"),
    "a folded encoding": OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + ENDS,
    "a NUL in a value": with_header(b"A: b\0c"),
    "a NUL in a name": with_header(b"A\0: b"),
    "a control character": with_header(b"A: b\x01c"),
    "a carriage return": with_header(b"A: b\rContent-Length: 9"),
    "a bad name": with_header(b"(A): b"),
    "a name that is not ASCII": with_header(b"\xc3\xa9: b"),
    "an empty name": with_header(b": b"),
    "no colon": with_header(b"A"),
    "lines without carriage returns": b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc",
    "a bad chunk size": chunked(b"z\r\nabc\r\n0\r\n\r\n"),
    "a negative chunk size": chunked(b"-1\r\nabc\r\n0\r\n\r\n"),
    "a chunk size with a prefix": chunked(b"0x3\r\nabc\r\n0\r\n\r\n"),
    "no chunk size": chunked(b"\r\nabc\r\n0\r\n\r\n"),
    "a length after chunks": chunked(b"3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n"),
    "a chunk size beyond 64 bits": chunked(b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
    "a chunk that is longer than its size": chunked(b"3\r\nabcd\r\n0\r\n\r\n"),
    "chunks without carriage returns": chunked(b"3\nabc\n0\n\n"),
    "a compressed body": OK + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "compressed chunks": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + ENDS,
    "chunks that are compressed": OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + ENDS,
    "an unknown encoding": OK + b"Transfer-Encoding: xchunked\r\n\r\n" + ENDS,
    "two encodings": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + ENDS,
    "another version": b"HTTP/3.7 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    "a long status": b"HTTP/1.1 2000 OK\r\nContent-Length: 3\r\n\r\nabc",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x46",
    "a request": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a change of the protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
    "a change to no protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + PLAIN,
}


@pytest.mark.parametrize("most", SIZES)
async def test_an_invalid_answer_is_an_error(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "PART_BYTES", most)
    for name, answer in INVALID.items():
        with case(name):
            async with connected(answer) as (connection, _):
                with pytest.raises(HttpError) as error:
                    await exchanged(connection)
                assert has_message(str(error.value), words.connection.answer_invalid)
                assert not connection.is_reusable


@pytest.mark.parametrize("name", ["plain", "in chunks", "a chunk with an extension, and a trailer"])
async def test_an_answer_that_is_cut_off_is_never_taken_for_a_whole_one(name: str) -> None:
    answer = WHOLE[name][0]
    for end in range(len(answer)):
        async with connected(answer[:end], closes=True) as (connection, _):
            with pytest.raises(EOFError) as error:
                await exchanged(connection)
        expected = words.connection.CUT_OFF if b"\r\n\r\n" in answer[:end] else words.connection.CLOSED
        assert str(error.value) == expected, answer[:end]


async def test_a_connection_that_closes_after_an_interim_answer_is_an_error() -> None:
    async with connected(b"HTTP/1.1 102 Processing\r\n\r\n", closes=True) as (connection, _):
        with pytest.raises(EOFError, match=words.connection.CLOSED):
            await exchanged(connection)


# Limits.

TWICE = 2 * MOST_FRAMING_BYTES
ENDLESS = {
    "a status line": b"HTTP/1.1 200 " + b"x" * TWICE,
    "a header": OK + b"A: " + b"x" * TWICE,
    "headers": OK + b"A: b\r\n" * TWICE,
    "interim answers": b"HTTP/1.1 102 Processing\r\n\r\n" * TWICE,
    "blank lines": b"\r\n" * TWICE,
    "a chunk's extension": chunked(b"3;" + b"x" * TWICE),
    "trailers": chunked(b"0\r\n" + b"A: b\r\n" * TWICE),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_the_framing_around_a_body_is_limited(name: str) -> None:
    async with connected(ENDLESS[name]) as (connection, _):
        with pytest.raises(HttpError) as error:
            await exchanged(connection)
    assert str(error.value) == words.connection.framing_too_long(MOST_FRAMING_BYTES)


LONG_CHUNK = b"1000\r\n" + b"x" * 4096 + b"\r\n"


@pytest.mark.parametrize(
    "answer",
    [OK + b"Content-Length: 10000000\r\n\r\n", chunked(b""), OK + b"\r\n"],
    ids=["announced", "in chunks", "until the connection closes"],
)
async def test_a_body_that_is_read_whole_is_limited(answer: bytes) -> None:
    async with connected(answer + LONG_CHUNK * (2 * MOST_BYTES // 4096)) as (connection, _):
        with pytest.raises(EOFError) as error:
            await exchanged(connection)
    assert str(error.value) == words.connection.answer_too_long(MOST_BYTES)


async def test_a_body_of_the_most_bytes_is_read() -> None:
    async with connected(OK + b"Content-Length: %d\r\n\r\n" % MOST_BYTES + b"x" * MOST_BYTES) as (connection, _):
        assert len((await exchanged(connection))[1]) == MOST_BYTES


# Requests.


async def test_a_request_is_one_head_and_its_body() -> None:
    async with connected(PLAIN, PLAIN, closes=True) as (connection, peer):
        await connection.ask("GET", "/a?b=c", [("Host", "a:1"), ("Authorization", "Bearer x y")])
        await connection.body()
        await connection.ask("PUT", "/", [("Host", "a:1")])
        await connection.body()
    assert peer.requests == [
        b"GET /a?b=c HTTP/1.1\r\nHost: a:1\r\nAuthorization: Bearer x y\r\n\r\n",
        b"PUT / HTTP/1.1\r\nHost: a:1\r\nContent-Length: 0\r\n\r\n",
    ]


@pytest.mark.parametrize("text", ["a\r\nX: y", "a\nX: y", "a\rX: y", "a\0", "\x7f", "ä", "\u2028"])
async def test_a_header_that_would_break_its_line_is_not_sent(text: str) -> None:
    async with connected() as (connection, peer):
        with pytest.raises(HttpError) as error:
            await connection.ask("POST", "/", [("Host", "a"), ("Authorization", text)], b"body")
        assert str(error.value) == words.connection.unsendable("Authorization")
    assert peer.requests == []


@pytest.mark.parametrize("path", ["/ HTTP/1.1\r\nX: y", "/\n", "/\r", "/\0", "/a b", "/ä"])
async def test_a_path_that_would_break_its_line_is_not_sent(path: str) -> None:
    async with connected() as (connection, peer):
        with pytest.raises(HttpError) as error:
            await connection.ask("GET", path, [("Host", "a")])
        assert str(error.value) == words.connection.unsendable("the path")
    assert peer.requests == []


async def test_unrequested_data_ends_the_connection() -> None:
    """For example, a proxy reports that the connection was idle for too long."""
    async with connected(PLAIN) as (connection, peer):
        assert not connection.is_over
        await exchanged(connection)
        assert connection.is_reusable and not connection.is_over
        peer.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await until(lambda: connection.is_over)


# Anything at all.


class Pieces:
    """Stream that delivers these pieces, each by one read."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)

    async def read(self, most: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def write(self, sent: bytes) -> None:
        pass


def outcome(pieces: Sequence[bytes]) -> tuple[int, bytes] | None:
    """Return the status and the body of an answer in these pieces; None if it is a failure."""
    stream = Pieces(pieces)
    exchange = exchanged(HttpConnection(cast(Any, (stream, stream)), MOST_BYTES))
    try:
        exchange.send(None)  # to its end: these reads do not wait
    except StopIteration as end:
        head, body = end.value
        return head.status_code, body
    except FAILURES as error:
        assert str(error)
        return None
    pytest.fail("the exchange waits")


ANSWERS = {**WHOLE, **LAST, "until the connection closes": UNTIL_CLOSE}


@given(st.sampled_from(sorted(ANSWERS)), st.sets(st.integers(1, 300)))
def test_it_does_not_matter_where_a_valid_answer_is_split(name: str, cuts: set[int]) -> None:
    answer, *expected = ANSWERS[name]
    assert outcome(split(answer, cuts)) == tuple(expected)


@given(st.sampled_from(sorted(INVALID)), st.sets(st.integers(1, 300)))
def test_it_does_not_matter_where_an_invalid_answer_is_split(name: str, cuts: set[int]) -> None:
    assert outcome(split(INVALID[name], cuts)) is None


def split(answer: bytes, cuts: set[int]) -> list[bytes]:
    places = [0, *sorted(cut for cut in cuts if cut < len(answer)), len(answer)]
    return [answer[begin:end] for begin, end in pairwise(places)]


TOKENS = st.sampled_from([
    b"HTTP/1.1 ", b"200", b"101", b"100", b"204", b"304", b"000", b" OK", b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ",
    b":", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\n",
    b"Upgrade: x\r\n", b"3", b"0", b"abc", b"0\r\n\r\n", OK, PLAIN, IN_CHUNKS, b";", b"\0", b"\xff",
])  # fmt: skip


@given(st.lists(TOKENS | st.binary(max_size=4), max_size=12))
def test_any_answer_is_read_or_is_one_of_the_failures(pieces: list[bytes]) -> None:
    by_piece, at_once = (
        outcome([piece for piece in pieces if piece]),
        outcome([b"".join(pieces)] if any(pieces) else []),
    )
    assert by_piece == at_once
