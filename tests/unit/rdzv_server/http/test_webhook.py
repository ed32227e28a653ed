"""Events to a webhook: in order, none lost, even if the receiver refuses and the server restarts repeatedly."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from jsonschema import Draft202012Validator
from rdzv_protocol.events import SIGNATURE

from rdzv_server.http import webhook as webhook_module
from rdzv_server.http.openapi import document
from rdzv_server.http.routes import ROUTES
from rdzv_server.http.webhook import Webhook, signature
from rdzv_server.server import RendezvousServer
from rdzv_server.storage.base import MemoryStore
from rdzv_server.words import exports as words
from tests.support.agent_side import come_and_go, is_forgotten_for_another
from tests.support.message_search import has_message
from tests.support.webhook_receiver import WebhookReceiver

SECRET = b"secret"
RUNS = ["a", "b", "c"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(webhook_module, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(webhook_module, "LONGEST_RETRY_S", 0.05)
    monkeypatch.setattr(webhook_module, "SWEEP_S", 0.02)


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver() as receiver:
        yield receiver


@asynccontextmanager
async def serving(
    store: MemoryStore, receiver: WebhookReceiver | None, max_runs: int = 100
) -> AsyncIterator[RendezvousServer]:
    """Yield a server, which sends its events if there is a receiver."""
    server = RendezvousServer(store=store, max_runs=max_runs)
    sending = None
    if receiver:
        webhook = Webhook(server.service, receiver.url, SECRET)
        server.service.observe(webhook.observe)
        sending = asyncio.create_task(webhook.run())
    async with server:
        yield server
    if sending:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


class NotingStore(MemoryStore):
    """Reports when this number has been delivered."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.delivered = asyncio.Event()
        self._number = number

    async def write_delivered(self, run_id: str, attempt: int, number: int) -> None:
        await super().write_delivered(run_id, attempt, number)
        if number >= self._number:
            self.delivered.set()


async def happens(server: RendezvousServer, run_id: str, first: int, times: int) -> None:
    """Let this number of nodes join and leave: two events each, and one of the run's creation."""
    await come_and_go(server.rendezvous, run_id, *(f"agent-{number}" for number in range(first, first + times)))


async def test_the_events_of_each_run_come_in_order(receiver):
    async with serving(MemoryStore(), receiver) as server:
        await asyncio.gather(*(happens(server, run_id, 0, 5) for run_id in RUNS))
        for run_id in RUNS:
            await receiver.has(run_id, 11)
    assert {run_id: receiver.numbers(run_id) for run_id in RUNS} == {run_id: list(range(1, 12)) for run_id in RUNS}


async def test_a_receiver_that_refuses_is_tried_again_and_misses_nothing(receiver, caplog):
    caplog.set_level("INFO")
    receiver.answers = [503, 404, 500, 302, 200, 503, 200]
    async with serving(MemoryStore(), receiver) as server:
        await happens(server, "a", 0, 2)
        await receiver.has("a", 5)
        await happens(server, "a", 2, 2)
        await receiver.has("a", 9)
    assert receiver.numbers("a") == list(range(1, 10))
    said = [record.getMessage() for record in caplog.records if "--webhook" in record.getMessage()]
    assert words.webhook_refuses(503, "Service Unavailable") in said[0] and has_message(said[1], words.webhook_answers)


async def test_a_restarted_server_continues_after_the_last_acknowledged_event(receiver):
    store = NotingStore(5)
    async with serving(store, receiver) as server:
        await happens(server, "a", 0, 2)
        await receiver.has("a", 5)
        await store.delivered.wait()  # otherwise it would be sent again, as a copy
    seen = receiver.requests
    async with serving(store, None) as server:
        await happens(server, "a", 2, 3)
    async with serving(store, receiver):
        await receiver.has("a", 11)
    assert receiver.numbers("a") == list(range(1, 12))
    assert receiver.first_numbers[seen:] == [6], "what was acknowledged is not sent again"


async def test_a_request_that_was_not_acknowledged_is_sent_again_by_the_next_server(receiver):
    """The server died before it learned that its request had arrived. The receiver knows copies by their numbers."""
    store = MemoryStore()
    receiver.answers = [500] * 1_000
    async with serving(store, receiver) as server:
        await happens(server, "a", 0, 1)
        await receiver.was_asked()
    receiver.answers = []
    async with serving(store, receiver):
        await receiver.has("a", 3)
    assert receiver.numbers("a") == [1, 2, 3]


async def test_the_events_of_a_run_that_was_forgotten_and_begins_again_are_sent_too(receiver):
    async with serving(MemoryStore(), receiver, max_runs=1) as server:
        await happens(server, "a", 0, 2)
        await receiver.has("a", 5)
        await is_forgotten_for_another(server.rendezvous, "a")
        await happens(server, "a", 2, 2)
        (run,) = server.rendezvous.runs()
        await receiver.has("a", run.event_number)
        page = await server.rendezvous.with_driver("a", lambda driver: driver.read_events("a", 0, 100))
    assert [event.number for event in page] == receiver.numbers("a")[-5:]


async def test_an_error_about_the_events_of_one_run_does_not_hold_back_events_of_others(receiver, monkeypatch, caplog):
    """When the error is over, for instance in a fixed version, the events of that run are sent, too."""
    delivery = webhook_module.EventDelivery

    def odd(run_id, events):
        return 1 / 0 if run_id == "b" else delivery(run_id=run_id, events=events)

    monkeypatch.setattr(webhook_module, "EventDelivery", odd)
    async with serving(MemoryStore(), receiver) as server:
        await asyncio.gather(*(happens(server, run_id, 0, 5) for run_id in RUNS))
        for run_id in ("a", "c"):
            await receiver.has(run_id, 11)
        assert server.service.state().event_errors == ["b"] and receiver.numbers("b") == []
        monkeypatch.setattr(webhook_module, "EventDelivery", delivery)
        await receiver.has("b", 11)
    assert len([record for record in caplog.records if "Webhook missed" in record.getMessage()]) == 1


async def test_every_request_is_signed_over_its_time_and_its_body(receiver):
    async with serving(MemoryStore(), receiver) as server:
        await happens(server, "a", 0, 1)
        await receiver.has("a", 3)
    for headers, body in receiver.raw:
        at = int(headers[SIGNATURE].partition(",")[0].removeprefix("t="))
        assert headers[SIGNATURE] == signature(SECRET, body, at)
        assert headers[SIGNATURE] != signature(b"another", body, at)
        assert json.loads(body)["run_id"] == "a"
        schema = {"$ref": "#/components/schemas/EventDelivery", "components": document(ROUTES)["components"]}
        Draft202012Validator(schema).validate(json.loads(body))
