"""Fuzzed bytes become a message or a readable refusal, quickly and without much memory."""

import gc
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdzv_protocol.codec import decode, encode
from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.messages import ErrorReply, JoinRequest, PollRequest, Reply

from tests.fuzz import wire
from tests.support.messages import KINDS, values

POLL = {"run_id": "r", "agent_id": "a", "revision": 1}
JOIN = POLL | {"node_id": "n", "after_round": 0, "addr": "h", "port": 1, "local_world_size": 1}

few = settings(max_examples=max(30, settings().max_examples // 8))
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def take(kind: Any, body: bytes) -> Any:
    """Return the message, which is unchanged when sent on, or None after a refusal that can be sent back and shown."""
    try:
        message = decode(kind, body)
    except ProtocolError as refusal:
        told = ErrorReply(code=refusal.code, message=str(refusal))
        assert decode(ErrorReply, encode(told)) == told
        assert str(refusal).isprintable() and 0 < len(str(refusal)) < 400
        return None
    sent_on = encode(message)
    assert decode(kind, sent_on) == message
    assert encode(decode(kind, sent_on)) == sent_on
    return message


@pytest.mark.parametrize(
    "bodies",
    [st.binary(max_size=300), wire.trees().map(wire.pack), wire.torn_messages()],
    ids=["any bytes", "any values", "messages with some bytes changed"],
)
def test_any_bytes_are_accepted_or_refused(bodies: st.SearchStrategy[bytes]) -> None:
    @given(st.sampled_from(KINDS), bodies)
    def is_taken_or_refused(kind: Any, body: bytes) -> None:
        take(kind, body)

    is_taken_or_refused()


@every_kind
def test_messages_with_some_fields_bent(kind: Any) -> None:
    taken: set[bool] = set()

    @few
    @given(wire.bent_messages(kind))
    def is_taken_or_refused(body: bytes) -> None:
        taken.add(take(kind, body) is not None)

    is_taken_or_refused()
    assert taken == {True, False}, "this tests nothing"


@every_kind
def test_unknown_fields_of_a_newer_peer_are_accepted(kind: Any) -> None:
    @few
    @given(values(kind), wire.trees())
    def is_taken(message: Any, news: Any) -> None:
        pairs = (("news", _shallow(news)), *msgpack.unpackb(encode(message)).items())
        assert take(kind, wire.pack(wire.Pairs(pairs))) == (None if _is_unfit(news) else message)

    is_taken()


def _shallow(value: Any) -> Any:
    """Return the value without lists and maps: the depth of a message is limited."""
    return str(type(value)) if isinstance(value, list | wire.Pairs) else value


def _is_unfit(value: Any) -> bool:
    """Return whether this is a text that UTF-8 cannot contain."""
    return isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value)


def test_the_last_of_two_equal_keys_wins() -> None:
    body = wire.pack(wire.Pairs((*POLL.items(), ("revision", 2))))
    assert take(PollRequest, body).revision == 2


# Cost of a refusal.


@few
@given(wire.claims())
def test_a_small_message_takes_little_memory_for_any_claimed_size(body: bytes) -> None:
    assert _peak_bytes(PollRequest, body) < 128 * 1024


def _fill(value: bytes) -> bytes:
    """Return lists of this value, each as long as possible, that fill a message to its allowed size."""
    many = wire.claim(b"\xdd", 1_000) + value * 1_000
    lists = (MAX_MESSAGE_BYTES - 200) // len(many)
    return wire.claim(b"\xdd", lists) + many * lists


LARGE: dict[str, tuple[Any, bytes]] = {
    "claims within claims": (Reply, wire.claim(b"\xdd", 250_000) * 100 + b"\0" * 250_000),
    "claims that just may be": (Reply, wire.claim(b"\xdd", 1_024) * 50_000),
    "one long list": (JoinRequest, msgpack.packb(JOIN | {"settings": {"fatal_exit_codes": [1] * 250_000}})),
    "many unknown fields": (PollRequest, msgpack.packb({str(key): 0 for key in range(30_000)})),
    "a long text": (PollRequest, msgpack.packb(POLL | {"run_id": "x" * 250_000})),
    "long bytes": (PollRequest, msgpack.packb(POLL | {"run_id": b"\0" * 250_000})),
    "nothing, often": (PollRequest, wire.pack(wire.Pairs((("run_id", 1),)))[:-1] + _fill(b"\xc0")),
    "empty maps": (PollRequest, wire.pack(wire.Pairs((("run_id", 1),)))[:-1] + _fill(b"\x80")),
    "empty maps for a tag": (Reply, wire.claim(b"\xdf", 1) + msgpack.packb("directive") + _fill(b"\x80")),
    "a number of many digits": (PollRequest, b"\xcb" * MAX_MESSAGE_BYTES),
}


@pytest.mark.parametrize(("kind", "body"), LARGE.values(), ids=LARGE)
def test_a_large_message_is_refused_at_a_bounded_cost(kind: Any, body: bytes) -> None:
    """Memory is bounded by 100 times the message's size, as empty maps of one byte each need; CPU time by 0.25 s."""
    assert len(body) <= MAX_MESSAGE_BYTES
    gc.freeze()  # search only the message's objects for garbage, not all that pytest holds
    try:
        began_s = time.process_time()
        assert take(kind, body) is None
        took_s = time.process_time() - began_s
    finally:
        gc.unfreeze()
    assert took_s < 0.25
    assert _peak_bytes(kind, body) < 100 * len(body)


def _peak_bytes(kind: Any, body: bytes) -> int:
    take(kind, body)  # create the decoder for such messages first
    tracemalloc.start()
    try:
        with suppress(ProtocolError):
            decode(kind, body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
