"""Queries that the server sends an agent beside its directive, and the agent's answers.

Open queries travel in every `Reply`, until they are answered or their time is over: a lost reply is harmless. An agent
names with its join the kinds that it knows, by their tags, and is sent no others. It answers each number once. Queries
are not durable: after a failover whoever asked asks again.
"""

from typing import Annotated

from msgspec import Meta, Struct

from rdzv_protocol.constraints import Address, Count, Line, Name, Nonce, Port, Rank, Round, Seconds, Sentence
from rdzv_protocol.evidence import Evidence
from rdzv_protocol.flag_values import MOST_LOG_LINES, LogStream

QueryNumber = Annotated[int, Meta(ge=0, le=2**53)]
QueryNumbers = Annotated[tuple[QueryNumber, ...], Meta(max_length=64)]
LineCount = Annotated[int, Meta(ge=1, le=MOST_LOG_LINES)]
LOG_BYTES = 65_536
"""Most bytes of a log file in one answer: as text they fit into a message."""
LogText = Annotated[str, Meta(max_length=LOG_BYTES)]
PAIR_TEST_PINGS, PAIR_TEST_BYTES = 16, 4 << 20
"""Single bytes that go to and fro in a test of two nodes, to measure latency; then bytes each way, for bandwidth."""
FileOffset = Annotated[int, Meta(ge=0, le=2**53)]


class TailLog(Struct, frozen=True, kw_only=True, tag_field="tag", tag="tail_log"):
    """Query for the last lines that one of this node's workers has written; answered with `LogTail`."""

    number: QueryNumber
    """Number that names the query at this agent; later queries have higher ones."""
    round: Round
    """Round whose workers are meant."""
    remaining_s: Seconds
    """Seconds after which nobody waits for the answer any more."""
    rank: Rank
    stream: LogStream
    lines: LineCount
    offset: FileOffset | None = None
    """Byte of the file to begin at, instead of `lines` before its end: to go on after an earlier answer."""


class Examine(Struct, frozen=True, kw_only=True, tag_field="tag", tag="examine"):
    """Query for what this node's workers are doing right now: stacks and kernel state; answered with `Evidence`."""

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    reason: Sentence = ""
    """Reason for the query, for a person."""


class Notice(Struct, frozen=True, kw_only=True, tag_field="tag", tag="notice"):
    """The round ends within `remaining_s`: the workers are to save their work; answered with `Noticed`."""

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    source: Name
    """Cause of the end: `node_left`, `node_drained` or `node_arrived`."""
    node_id: Line
    """Node that goes or comes; empty if it is gone since."""
    reason: Sentence


class PairTest(Struct, frozen=True, kw_only=True, tag_field="tag", tag="pair_test"):
    """Measure the network between this node and another one, which gets the same query; answered with `PairTested`.

    One of the two listens at its own reserved port, and takes the one connection that begins with `nonce`. The other
    connects and sends the nonce, then 16 single bytes, each of which comes back before the next, then 4,194,304 zeros.
    The one that listens then sends as many, and gets one more byte.
    """

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    listens: bool
    """Whether this node listens; else it connects."""
    peer: Line
    """Node id of the other node."""
    addr: Address
    """Address at which the listening node is reached, the one of its join; `port` likewise."""
    port: Port
    nonce: Nonce
    limit_s: Seconds
    """Longest time of the test, in seconds."""


Query = TailLog | Examine | Notice | PairTest
"""Any query. Each kind has `number`, `round` and `remaining_s`, which mean what they mean in `TailLog`."""


class LogTail(Struct, frozen=True, kw_only=True, tag_field="tag", tag="log_tail"):
    """The end of a worker's log file."""

    path: Line
    """Path of the file on its node."""
    text: LogText
    """Text that was read, as UTF-8, where other bytes are replaced. It may have control characters."""
    offset: FileOffset
    """Byte of the file at which `text` ends: the offset to ask for next."""
    is_cut: bool = False
    """Whether there was more to read than fits into one answer: the oldest lines are left out."""


class Noticed(Struct, frozen=True, kw_only=True, tag_field="tag", tag="noticed"):
    """The workers that listen have acknowledged the notice, or time is nearly over."""

    listening: Count
    """Workers of this node that have shown that they read notices."""
    acknowledged: Count
    """Workers among `listening` that have saved what they need."""


class PairTested(Struct, frozen=True, kw_only=True, tag_field="tag", tag="pair_tested"):
    """Result of a network test, as one of the two nodes has measured it."""

    mb_per_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Bandwidth from the other node, in 10^6 bytes a second."""
    latency_s: Seconds = 0.0
    """Median time in seconds of a byte to the other node and back; 0 at the node that listens."""
    problem: Line = ""
    """Reason why the test has failed, by this node's limits; empty if it has passed."""


class Refused(Struct, frozen=True, kw_only=True, tag_field="tag", tag="refused"):
    """Refusal to answer a query, with the reason for a person."""

    reason: Sentence


QueryAnswer = LogTail | Evidence | Noticed | PairTested | Refused
Queries = Annotated[tuple[Query, ...], Meta(max_length=16)]
