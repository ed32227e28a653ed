"""Traces of rounds: which of them end with an error."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from rdzv_server.core.effects import Effect, EmitEvent
from rdzv_server.service import traces
from rdzv_server.service.observers import Observer
from tests.support.scenario import Scenario, running


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (lambda run: run.fails("a"), "worker_failure"),
        (lambda run: (run.suspects("a", 0), run.judges()), "hang"),
        (lambda run: run.is_stopped(), "run_failed"),
        (lambda run: run.leaves("a"), None),
        (lambda run: run.is_restarted(), None),
    ],
    ids=["a worker's failure", "a hang", "an operator who stops the run", "a node that leaves", "a restart"],
)
def test_a_round_that_failed_is_an_error(
    ends: Callable[[Scenario], object], error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans, observers = list[Any](), list[Any]()
    monkeypatch.setattr(traces, "SpanExport", lambda *_: SimpleNamespace(add=spans.append))
    run = running("2", "a", "b", max_restarts=1)
    seen = len(run.events)
    service: Any = SimpleNamespace(observe=observers.append, runs=lambda: [run.run])
    traces.RoundTraces(service, 29_400)
    tell(observers[0], map(EmitEvent, run.events))
    ends(run)
    tell(observers[0], map(EmitEvent, run.events[seen:]))
    (ran,) = [span for span in spans if span.name == "rdzv.round.run"]
    assert (ran.attributes.get("error.type"), bool(ran.error)) == (error, error is not None)


def test_runs_that_another_server_leads_now_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    spans, observers = list[Any](), list[Any]()
    monkeypatch.setattr(traces, "SpanExport", lambda *_: SimpleNamespace(add=spans.append))
    led = list[Any]()
    service: Any = SimpleNamespace(observe=observers.append, runs=lambda: led)
    exporter = traces.RoundTraces(service, 29_400)
    gone, here = running("1", "a"), running("1", "a")
    gone.run.run_id = "gone"
    led.append(gone.run)
    tell(observers[0], [*gone.records, *(EmitEvent(replace(event, run_id="gone")) for event in gone.events)])
    tell(observers[0], [replace(record, run_id="forming") for record in gone.records])
    assert remembered(exporter) == {"gone", "forming"}
    led[:] = [here.run]
    tell(observers[0], [*here.records, *map(EmitEvent, here.events)])
    assert remembered(exporter) == {here.run.run_id}


def tell(observer: Observer, effects: Iterable[Effect]) -> None:
    for effect in effects:
        observer(effect)


def remembered(exporter: traces.RoundTraces) -> set[str]:
    return {run_id for kept in vars(exporter).values() if isinstance(kept, dict) for run_id in kept}
