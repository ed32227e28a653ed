"""What the server asks an agent beside its directive, and what the agent answers.

Open queries travel in every `Reply`, until they are answered or their time is over: a lost reply is harmless. An agent
names with its join the kinds that it knows, by their tags, and is asked no others. It answers each number once. Queries
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
"""Bytes of a log file that one answer has at most: as text they are never more than a message may have."""
LogText = Annotated[str, Meta(max_length=LOG_BYTES)]
PAIR_TEST_PINGS, PAIR_TEST_BYTES = 16, 4 << 20
"""Bytes that go to and fro one by one in a test of two nodes, and then those that go each way at once."""
FileOffset = Annotated[int, Meta(ge=0, le=2**53)]


class TailLog(Struct, frozen=True, kw_only=True, tag_field="tag", tag="tail_log"):
    """The last lines that one of this node's workers has written; answered with `LogTail`."""

    number: QueryNumber
    """Name of the query at this agent. Later ones have higher numbers."""
    round: Round
    """The round whose workers are meant."""
    remaining_s: Seconds
    """Time after which nobody waits for the answer any more."""
    rank: Rank
    stream: LogStream
    lines: LineCount
    offset: FileOffset | None = None
    """Where to begin in the file, in bytes, instead of `lines` before its end: to go on after an earlier answer."""


class Examine(Struct, frozen=True, kw_only=True, tag_field="tag", tag="examine"):
    """What this node's workers are doing right now: stacks and the kernel's view; answered with `Evidence`."""

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    reason: Sentence = ""
    """Why it is asked, for a person."""


class Notice(Struct, frozen=True, kw_only=True, tag_field="tag", tag="notice"):
    """The round ends within `remaining_s`: the workers are to save their work; answered with `Noticed`."""

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    source: Name
    """Cause of the end: `node_left`, `node_drained` or `node_arrived`."""
    node_id: Line
    """The node that goes or comes; empty if it is gone since."""
    reason: Sentence


class PairTest(Struct, frozen=True, kw_only=True, tag_field="tag", tag="pair_test"):
    """Measure the network between this node and another one, which is asked at the same time; answered with
    `PairTested`.

    One of the two listens at its own reserved port, and takes one connection that begins with `nonce`. The other
    connects and sends the nonce, then single bytes that come back, and `PAIR_TEST_BYTES` of zeros; it gets as many.
    """

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    listens: bool
    """Whether this node listens; else it connects."""
    peer: Line
    """The other node."""
    addr: Address
    """Address and port at which the listening node is reached by the other one: those that it joined with."""
    port: Port
    nonce: Nonce
    limit_s: Seconds
    """Longest time of the test."""


Query = TailLog | Examine | Notice | PairTest
"""Each kind has `number`, `round` and `remaining_s`, which mean what they mean in `TailLog`."""


class LogTail(Struct, frozen=True, kw_only=True, tag_field="tag", tag="log_tail"):
    """The end of a worker's log file."""

    path: Line
    """The file, on its node."""
    text: LogText
    """What was read of it, as UTF-8; what is none is replaced. It may have any characters, control ones included."""
    offset: FileOffset
    """Where `text` ends in the file, in bytes: what to ask for next."""
    is_cut: bool = False
    """There was more to read than one answer has: the oldest of it is left out."""


class Noticed(Struct, frozen=True, kw_only=True, tag_field="tag", tag="noticed"):
    """The workers that listen have acknowledged the notice, or time is nearly over."""

    listening: Count
    """Workers of this node that have shown that they read notices."""
    acknowledged: Count
    """Those of them that have saved what they need."""


class PairTested(Struct, frozen=True, kw_only=True, tag_field="tag", tag="pair_tested"):
    """What one of two nodes has measured between them."""

    mb_per_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Bandwidth of what came from the other node, in 10^6 bytes a second."""
    latency_s: Seconds = 0.0
    """Median time of a byte to the other node and back; 0 at the node that listens."""
    problem: Line = ""
    """Why the test has failed, by this node's limits; empty if it has passed."""


class Refused(Struct, frozen=True, kw_only=True, tag_field="tag", tag="refused"):
    """The query is not answered, and why: for a person."""

    reason: Sentence


QueryAnswer = LogTail | Evidence | Noticed | PairTested | Refused
Queries = Annotated[tuple[Query, ...], Meta(max_length=16)]
