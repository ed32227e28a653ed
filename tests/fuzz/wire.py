"""Bytes like msgpack, or nearly: what our own encoder would never write."""

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgpack
from hypothesis import strategies as st
from rdzv_protocol.codec import encode

from tests.support.messages import KINDS, values

HEADERS = (
    b"\x80", b"\x8f", b"\x90", b"\x9f", b"\xa0", b"\xbf", b"\xc0", b"\xc1", b"\xc2", b"\xc3", b"\xc4", b"\xc5", b"\xc6",
    b"\xc7", b"\xc8", b"\xc9", b"\xca", b"\xcb", b"\xcc", b"\xcd", b"\xce", b"\xcf", b"\xd0", b"\xd1", b"\xd2", b"\xd3",
    b"\xd4", b"\xd5", b"\xd6", b"\xd7", b"\xd8", b"\xd9", b"\xda", b"\xdb", b"\xdc", b"\xdd", b"\xde", b"\xdf", b"\xff",
)  # fmt: skip
"""Every type byte of msgpack, and the one that it never uses."""


@dataclass(frozen=True)
class Pairs:
    """A map in wire order, with keys of any type that may repeat."""

    pairs: tuple[tuple[Any, Any], ...]


def claim(header: bytes, count: int) -> bytes:
    """Return a list or a map with this number of items, which do not follow."""
    return header + struct.pack(">I", count)


def pack(value: Any) -> bytes:
    """Return the value in msgpack."""
    if isinstance(value, Pairs):
        return claim(b"\xdf", len(value.pairs)) + b"".join(pack(key) + pack(item) for key, item in value.pairs)
    if isinstance(value, list):
        return claim(b"\xdd", len(value)) + b"".join(map(pack, value))
    if isinstance(value, str):  # including lone surrogates, which UTF-8 does not have
        text = value.encode("utf-8", "surrogatepass")
        return claim(b"\xdb", len(text)) + text
    packed: bytes = msgpack.packb(value)
    return packed


@cache
def trees() -> st.SearchStrategy[Any]:
    """Return a strategy for values of every type in msgpack."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats()
        | st.text(st.characters(), max_size=6)
        | st.binary(max_size=6)
        | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=6))
        | st.builds(msgpack.Timestamp, st.integers(-(2**60), 2**60), st.integers(0, 999_999_999))
    )
    names = st.sampled_from(["run_id", "agent_id", "revision", "round", "settings", "directive", "tag", "failure"])
    return st.recursive(
        leaves,
        lambda items: (
            st.lists(items, max_size=4)
            | st.builds(Pairs, st.lists(st.tuples(names | leaves, items), max_size=4).map(tuple))
        ),
        max_leaves=12,
    )


@st.composite
def bent_messages(draw: st.DrawFn, kind: Any) -> bytes:
    """Return a message with one or two fields missing, of another type, or duplicated."""
    whole = msgpack.unpackb(encode(draw(values(kind))))
    bent = draw(st.sets(st.sampled_from(sorted(whole)), max_size=2))
    pairs = [
        (name, draw(st.just(value) | trees()) if name in bent else value)
        for name, value in whole.items()
        for _ in range(draw(st.sampled_from((1, 0, 2))) if name in bent else 1)
    ]
    return pack(Pairs(tuple(pairs)))


@st.composite
def torn_messages(draw: st.DrawFn) -> bytes:
    """Return the bytes of a message, with a few cuts, changes and insertions."""
    body = draw(st.sampled_from(KINDS).flatmap(values).map(encode))
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
        insert = draw(st.just(b"") | st.sampled_from(HEADERS) | st.binary(max_size=5))
        keep = draw(st.sampled_from((start, start + 1, end)))
        body = body[:start] + insert + body[keep:]
    return body


def claims() -> st.SearchStrategy[bytes]:
    """Return a strategy for nested lists and maps, each of which claims to be large."""
    counts = st.sampled_from((1, 15, 16, 1_000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF))
    header = st.builds(claim, st.sampled_from((b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")), counts)
    return st.builds(b"".join, st.lists(header, max_size=40))
