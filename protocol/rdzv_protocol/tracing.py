"""OpenTelemetry traces of rounds: one trace for each round. Server and agents each export their part of it.

Both derive the ids of traces and spans from what both know about a round, so that no ids have to travel. Importing the
SDK, building spans and exporting them happen in threads of their own that end with the process. If an exporter hangs or
refuses, only its spans are lost, with one warning. Tracing needs the extra `otel`.
"""

import concurrent.futures.thread  # noqa: F401 - its lock is released after a fork, also if imported in between
import logging
import os
import threading
from collections.abc import Callable, Mapping
from hashlib import blake2b
from importlib.util import find_spec
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from rdzv_protocol import words

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SCOPE = "rdzv"
EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
ROUND = "rdzv.round"
"""Part of a trace that is its root: the round while it forms."""
MOST_QUEUED = 8_192
"""Most spans of a process that wait to be exported; further ones are dropped."""
CLOSE_S = 2.0
"""Most seconds for which an exiting process waits for its last spans; 0 once an export has failed."""


Attributes = Mapping[str, str | int | float | bool]


class TracedRound(NamedTuple):
    """Identity of a round: the master's port is reserved again for each round, also in another attempt."""

    run_id: str
    round: int
    master_addr: str
    master_port: int

    @property
    def trace_id(self) -> int:
        return _number("\0".join(map(str, self)), 16)

    def span_id(self, part: str) -> int:
        return _number(f"{self.trace_id}\0{part}", 8)


class Part(NamedTuple):
    """One span. Times are in seconds since 1970; `part` is unique in its trace; an empty `parent` makes it the root."""

    round: TracedRound
    name: str
    part: str
    parent: str
    began_at: float
    ended_at: float
    attributes: Attributes
    error: str = ""


def node_part(group_rank: int) -> str:
    """Return the name of the part for one node's way into the round."""
    return f"node {group_rank}"


def missing() -> str:
    """Return what must be installed before tracing works, as text; empty if nothing is missing."""
    try:
        is_there = find_spec("opentelemetry.sdk") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ImportError:
        is_there = None
    return "" if is_there else words.tracing.NO_SDK


class SpanExport:
    """Export of this process's spans, as the OTEL_* variables say. No method blocks or raises, except that `close`
    waits.

    `warn` gets one line, from another thread, if anything is wrong.
    """

    def __init__(self, service: str, attributes: Attributes, warn: Callable[[str], None]) -> None:
        self._service = service
        self._attributes = attributes
        self._warn = warn
        self._has_warned = False
        self._queue: SimpleQueue[Part | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="otel", daemon=True)
        self._thread.start()

    def add(self, part: Part) -> None:
        if self._queue.qsize() < MOST_QUEUED:
            self._queue.put(part)

    def close(self) -> None:
        """Export the remaining spans, for at most `CLOSE_S`."""
        self._queue.put(None)
        self._thread.join(0.0 if self._has_warned else CLOSE_S)

    def _run(self) -> None:
        handler = _Once(self._complain)
        sdk = logging.getLogger("opentelemetry")
        sdk.addHandler(handler)
        sdk.propagate = False
        try:
            provider = self._provider()
            while (part := self._queue.get()) is not None:
                _export(provider, part)
            provider.shutdown()
        except Exception as error:
            self._complain(f"{type(error).__name__}: {error}")

    def _provider(self) -> "TracerProvider":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        names_itself = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        name = {} if names_itself else {"service.name": self._service}
        resource = Resource.create({**name, **self._attributes})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=_given_ids())
        exporter = os.environ.get(EXPORTER_VARIABLE, "otlp")
        if exporter == "otlp":
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        elif exporter != "none":
            self._complain(words.tracing.bad_exporter(EXPORTER_VARIABLE, exporter))
        return provider

    def _complain(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(words.tracing.traces_lost(why))


class _Once(logging.Handler):
    """Log handler that passes the SDK's warnings on to `complain`."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._complain = complain

    def emit(self, record: logging.LogRecord) -> None:
        self._complain(record.getMessage())


def _given_ids() -> Any:
    """Return a generator that returns the ids of the part that it was given before, in the thread that builds spans."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class GivenIds(IdGenerator):
        part: Part

        def generate_trace_id(self) -> int:
            return self.part.round.trace_id

        def generate_span_id(self) -> int:
            return self.part.round.span_id(self.part.part)

    return GivenIds()


def _export(provider: "TracerProvider", part: Part) -> None:
    """Build a span that has ended. Its trace's id decides whether it is sampled, so all programs decide alike."""
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

    trace_id = part.round.trace_id
    if provider.sampler.should_sample(None, trace_id, ROUND).decision is Decision.DROP:
        return
    context = Context()
    if part.parent:
        flags = TraceFlags(TraceFlags.SAMPLED)
        parent = SpanContext(trace_id, part.round.span_id(part.parent), is_remote=True, trace_flags=flags)
        context = set_span_in_context(NonRecordingSpan(parent), context)
    provider.id_generator.part = part  # type: ignore[attr-defined]
    times = [int(at * 1e9) for at in (part.began_at, part.ended_at)]
    span = provider.get_tracer(SCOPE).start_span(part.name, context, attributes=part.attributes, start_time=times[0])
    if part.error:
        span.set_status(Status(StatusCode.ERROR, part.error))
    span.end(max(times))


def _number(text: str, size: int) -> int:
    return int.from_bytes(blake2b(text.encode(errors="replace"), digest_size=size).digest(), "big") or 1
