"""Queries that the server sends an agent beside its directive, and the agent's answers.

Every `Reply` contains the first 16 open queries until they are answered or their time is over, so a lost reply is
harmless. In its join, an agent names the kinds that it knows, by their tags; the server does not send it others. It
answers each number once. Queries are not durable: after a failover they have to be asked again.
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
"""Single bytes sent back and forth in a test of two nodes, to measure latency; then bytes each way, for bandwidth."""
FileOffset = Annotated[int, Meta(ge=0, le=2**53)]
MOST_VARIABLES, LONGEST_VALUE = 256, 256
"""Most variables of a `Description`, and most characters of a name or a value."""
ShortText = Annotated[str, Meta(max_length=LONGEST_VALUE)]


class TailLog(Struct, frozen=True, kw_only=True, tag_field="tag", tag="tail_log"):
    """Query for the last lines that one of this node's workers has written; answered with `LogTail`."""

    number: QueryNumber
    """Number of the query at this agent; later queries have higher numbers."""
    round: Round
    """Round of the workers."""
    remaining_s: Seconds
    """Seconds after which the answer comes too late."""
    rank: Rank
    stream: LogStream
    lines: LineCount
    offset: FileOffset | None = None
    """Byte of the file at which to begin, instead of `lines` before its end: to continue after an earlier answer."""


class Examine(Struct, frozen=True, kw_only=True, tag_field="tag", tag="examine"):
    """Query for what this node's workers are doing now: stacks and kernel state; answered with `Evidence`."""

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    reason: Sentence = ""
    """Reason for the query, for a person."""


class Notice(Struct, frozen=True, kw_only=True, tag_field="tag", tag="notice"):
    """The round ends within `remaining_s`: ask the workers to save their work; answered with `Noticed`."""

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    source: Name
    """Cause of the end: `node_left`, `node_drained` or `node_arrived`."""
    node_id: Line
    """Node that leaves or arrives; empty if it is gone since."""
    reason: Sentence


class PairTest(Struct, frozen=True, kw_only=True, tag_field="tag", tag="pair_test"):
    """Measure the network between this node and another one, which gets the same query; answered with `PairTested`.

    One of the two listens on its own reserved port, and accepts the one connection that begins with `nonce`. The other
    connects and sends the nonce, then 16 single bytes, each of which comes back before the next, then 4,194,304 zeros.
    The listening node then sends as many, and gets one more byte.
    """

    number: QueryNumber
    round: Round
    remaining_s: Seconds
    listens: bool
    """Whether this node listens; otherwise it connects."""
    peer: Line
    """Node id of the other node."""
    addr: Address
    """Address of the listening node, from its join; `port` is its port from the join."""
    port: Port
    nonce: Nonce
    limit_s: Seconds
    """Most seconds for the test."""


class Describe(Struct, frozen=True, kw_only=True, tag_field="tag", tag="describe"):
    """Query for the agent's versions, its machine and its environment; answered with `Description`."""

    number: QueryNumber
    round: Round
    remaining_s: Seconds


class FindCause(Struct, frozen=True, kw_only=True, tag_field="tag", tag="find_cause"):
    """Look for a worker that an exception has ended and that has not exited yet; answered with `CauseSought`.

    Workers of other nodes have lost one. If there is such a worker, the agent reports its failure before it answers.
    """

    number: QueryNumber
    round: Round
    remaining_s: Seconds


Query = TailLog | Examine | Notice | PairTest | Describe | FindCause
"""Any query. `number`, `round` and `remaining_s` have the same meaning in each kind as in `TailLog`."""


class LogTail(Struct, frozen=True, kw_only=True, tag_field="tag", tag="log_tail"):
    """The end of a worker's log file."""

    path: Line
    """Path of the file on its node."""
    text: LogText
    """Text that was read, as UTF-8, with other bytes replaced. It may contain control characters."""
    offset: FileOffset
    """Byte of the file at which `text` ends: the offset for the next request."""
    is_cut: bool = False
    """Whether there was more to read than fits into one answer. If so, the oldest lines are left out."""


class Noticed(Struct, frozen=True, kw_only=True, tag_field="tag", tag="noticed"):
    """The listening workers have acknowledged the notice, or time is nearly over."""

    listening: Count
    """Number of workers of this node that have shown that they read notices."""
    acknowledged: Count
    """Number of workers among `listening` that have saved what they need."""


class PairTested(Struct, frozen=True, kw_only=True, tag_field="tag", tag="pair_tested"):
    """Result of a network test, as one of the two nodes has measured it."""

    mb_per_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Bandwidth from the other node, in 10^6 bytes a second."""
    latency_s: Seconds = 0.0
    """Median time in seconds of a byte to the other node and back; 0 on the listening node."""
    problem: Line = ""
    """Reason why the test has failed, by this node's limits; empty if it has passed."""


class Version(Struct, frozen=True, kw_only=True):
    """Version of a program or library."""

    name: ShortText
    """Name of the program or library: `node-agent`, `python`, `torch`."""
    version: ShortText


class Variable(Struct, frozen=True, kw_only=True):
    """Variable of an agent's environment."""

    name: ShortText
    value: ShortText | None
    """Value, if the variable configures torch or its libraries; null for any other variable."""


Versions = Annotated[tuple[Version, ...], Meta(max_length=64)]
Variables = Annotated[tuple[Variable, ...], Meta(max_length=MOST_VARIABLES)]


class Description(Struct, frozen=True, kw_only=True, tag_field="tag", tag="description"):
    """Versions of an agent's programs and libraries, its machine, and the variables of its environment."""

    versions: Versions
    system: Line
    """Operating system, its release, and the machine's architecture."""
    cpus: Count
    """CPUs that the agent may use."""
    gpu_driver: Line = ""
    """Version of the GPUs' driver, from a file of the system; empty if there is no such file."""
    variables: Variables


class CauseSought(Struct, frozen=True, kw_only=True, tag_field="tag", tag="cause_sought"):
    """Result of the search for a worker that an exception has ended."""

    found: bool
    """Whether the agent has found one, and reports its failure."""


class Refused(Struct, frozen=True, kw_only=True, tag_field="tag", tag="refused"):
    """Refusal to answer a query, with the reason for a person."""

    reason: Sentence


QueryAnswer = LogTail | Evidence | Noticed | PairTested | Description | CauseSought | Refused
MOST_QUERIES = 16
"""Most queries in one reply. Further ones are sent when earlier ones are closed."""
Queries = Annotated[tuple[Query, ...], Meta(max_length=MOST_QUERIES)]
