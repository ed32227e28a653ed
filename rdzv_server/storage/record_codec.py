"""Facts as bytes, for stores. The kind of a fact is the name of its class; its body is encoded by the wire's codec.

A store may be older or newer than the program that reads it. As on the wire, an unknown field is ignored and a missing
one has its default. An unknown kind of event is kept as it is. An unknown kind of record, or a value that does not fit,
raises `OfLaterVersion`, and anything else that cannot be read `MalformedRecord`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import structs
from rdzv_protocol.codec import decode_own, encode
from rdzv_protocol.errors import ProtocolError
from rdzv_protocol.events import RunEvent

from rdzv_server.core.effects import Record
from rdzv_server.core.events import Fact, NumbersUsed, PolicyFact, RunCreated, SnapshotPart
from rdzv_server.core.kernel.operations import BY_FACT
from rdzv_server.core.node_facts import CordonsKept, NodeBlamed
from rdzv_server.core.policies import POLICIES
from rdzv_server.words import storage as words


class MalformedRecord(Exception):
    """Error for stored data that is not a record of this server."""


class OfLaterVersion(MalformedRecord):
    """Error for a kind of record, or a value, that this version of the server does not know; a later one may."""


_OF_RUN = [kind for kind in get_args(Fact) if kind is not PolicyFact]
_OF_POLICIES = [kind for policy in POLICIES for kind in policy.rules if issubclass(kind, PolicyFact)]
_OTHERS = [RunCreated, SnapshotPart, CordonsKept, NodeBlamed, NumbersUsed]
_KINDS: dict[str, type[Fact | RunCreated | SnapshotPart | CordonsKept | NodeBlamed | NumbersUsed]] = {
    kind.__name__: kind for kind in (*_OF_RUN, *BY_FACT, *_OF_POLICIES, *_OTHERS)
}


def pack(record: Record) -> tuple[str, bytes]:
    """Encode a record's fact. Return its kind and its body."""
    return type(record.fact).__name__, encode(record.fact)


def unpack(run_id: str, attempt: int, at: float, kind: str, body: bytes) -> Record:
    """Decode a record from its parts. Raises `MalformedRecord`."""
    if kind not in _KINDS:
        raise OfLaterVersion(words.unknown_kind(kind, attempt, run_id))
    try:
        return Record(run_id, attempt, at, decode_own(_KINDS[kind], body))
    except ProtocolError as error:
        raise _unfit(body)(words.malformed_record(kind, attempt, run_id, error)) from None


class EventBatch(NamedTuple):
    """Batch of consecutive events of one attempt, which a store keeps as one value."""

    run_id: str
    attempt: int
    first: int
    last: int
    body: bytes


_events = msgspec.msgpack.Decoder(list[RunEvent])
_pack_events = msgspec.msgpack.Encoder().encode


def pack_events(events: Iterable[RunEvent], most: int) -> Iterator[EventBatch]:
    """Pack mixed events of several attempts by attempt, at most `most` in one batch."""
    of_attempt: dict[tuple[str, int], list[RunEvent]] = {}
    for event in events:
        of_attempt.setdefault((event.run_id, event.attempt), []).append(event)
    for key, those in of_attempt.items():
        for begin in range(0, len(those), most):
            some = those[begin : begin + most]
            yield EventBatch(*key, some[0].number, some[-1].number, _pack_events(some))


def unpack_events(body: bytes) -> list[RunEvent]:
    """Decode the events of a batch. Raises `MalformedRecord`."""
    try:
        try:
            return _events.decode(body)
        except msgspec.ValidationError:
            return [_of_any_version(event) for event in msgspec.msgpack.decode(body)]
    except (msgspec.DecodeError, TypeError) as error:
        raise _unfit(body)(words.malformed_events(error)) from None


def _of_any_version(event: dict[str, Any]) -> RunEvent:
    """Return an event of any kind. A later version may have written it, so readers must expect new kinds.

    Raises `msgspec.ValidationError`, or `TypeError` if it is not an event.
    """
    known = msgspec.convert(event | {"kind": "warning"}, RunEvent)
    return structs.replace(known, kind=event["kind"]) if isinstance(event.get("kind"), str) else known


def _unfit(body: bytes) -> type[MalformedRecord]:
    """Return the kind of error for data that do not fit: if they are whole, a later version may have written them."""
    try:
        msgspec.msgpack.decode(body)
    except msgspec.DecodeError:
        return MalformedRecord
    return OfLaterVersion


def settled(records: Sequence[Record]) -> list[Record]:
    """Return the records of an attempt without those that a complete snapshot replaces, and without an incomplete one.

    A store that cannot replace records with a snapshot in one transaction may hold both, or the beginning of the
    snapshot.
    """
    whole: list[Record] = []
    taking: list[Record] | None = None
    for record in records:
        if isinstance(record.fact, RunCreated) and whole:
            taking = []
        elif not isinstance(record.fact, SnapshotPart):
            taking = None  # the server died before the snapshot was complete, and another one continued
        (whole if taking is None else taking).append(record)
        if taking and isinstance(record.fact, SnapshotPart) and record.fact.is_last:
            whole, taking = taking, None
    return whole
