"""Metadata services of clouds, simulated by a server that answers as documented."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from msgspec.structs import replace
from rdzv_protocol.text import clip

from node_agent.features import preemption
from node_agent.features.preemption import cloud_metadata, words
from node_agent.features.preemption.cloud_metadata import CLOUDS, MOST_BYTES, PreemptionPoll
from node_agent.words import connection
from tests.support.message_search import has_message, message_fields

LONG_S = 60.0
TOKEN, ETAG = "AQAEAtoken==", "411261ca6c9e4a2b"
NAME = "trainer-3"
Handler = Callable[[web.Request], Awaitable[web.Response]]


class Machine:
    """A machine of a cloud. `taken_back` announces its preemption."""

    def __init__(self) -> None:
        self.taken_back = asyncio.Event()
        self.asked: list[str] = []
        self.questions = asyncio.Semaphore(0)
        self.tokens = 0
        self.warned: list[str] = []

    async def is_asked(self, times: int) -> None:
        """Wait for this number of further requests."""
        for _ in range(times):
            await self.questions.acquire()

    def _note(self, question: str) -> None:
        self.asked.append(question)
        self.questions.release()

    async def aws_token(self, request: web.Request) -> web.Response:
        assert request.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600"
        self.tokens += 1
        return web.Response(text=f"{TOKEN}{self.tokens}")

    async def aws(self, request: web.Request) -> web.Response:
        self._note(request.path)
        if request.headers.get("X-aws-ec2-metadata-token") != f"{TOKEN}{self.tokens}" or len(self.asked) == 2:
            return web.Response(status=401)  # the token has expired
        if not self.taken_back.is_set():
            return web.Response(status=404)
        return web.json_response({"action": "terminate", "time": "2026-11-22T08:22:00Z"})

    async def google(self, request: web.Request) -> web.Response:
        assert request.headers["Metadata-Flavor"] == "Google" and request.query["wait_for_change"] == "true"
        self._note(request.query["last_etag"])
        if request.query["last_etag"] == ETAG:  # held until something changes
            await self.taken_back.wait()
        body = "TRUE" if self.taken_back.is_set() else "FALSE"
        return web.Response(text=f"{body}\n", headers={"Metadata-Flavor": "Google", "ETag": ETAG})

    async def azure_name(self, request: web.Request) -> web.Response:
        assert request.headers["Metadata"] == "true" and request.query["format"] == "text"
        return web.Response(text=NAME)

    async def azure(self, request: web.Request) -> web.Response:
        assert request.headers["Metadata"] == "true"
        self._note(request.path)
        others = [("Preempt", "trainer-4"), ("Freeze", NAME)]
        told = [*others, ("Preempt", NAME)] if self.taken_back.is_set() else others
        common = {"ResourceType": "VirtualMachine", "NotBefore": "Sun, 22 Nov 2026 18:29:47 GMT"}
        listed = [{"EventType": kind, "Resources": [name], **common} for kind, name in told]
        return web.json_response({"DocumentIncarnation": 1, "Events": listed})


@asynccontextmanager
async def served(machine: Machine) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_put("/latest/api/token", machine.aws_token)
    app.router.add_get("/latest/meta-data/spot/instance-action", machine.aws)
    app.router.add_get("/computeMetadata/v1/instance/preempted", machine.google)
    app.router.add_get("/metadata/instance/compute/name", machine.azure_name)
    app.router.add_get("/metadata/scheduledevents", machine.azure)
    async with listening(app) as base:
        yield base


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_metadata, "AGAIN_S", 0.02)


@pytest.mark.parametrize(
    ("cloud", "notice"),
    [
        ("aws", words.aws_takes_back("terminate", "2026-11-22T08:22:00Z")),
        ("gcp", words.GOOGLE_TAKES_BACK),
        ("azure", words.azure_takes_back("Preempt", NAME, "Sun, 22 Nov 2026 18:29:47 GMT")),
    ],
)
async def test_a_cloud_takes_its_machine_back(cloud: str, notice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLOUDS, cloud, replace(CLOUDS[cloud], every_s=0.01))
    machine = Machine()
    async with served(machine) as base:
        poll = asyncio.create_task(PreemptionPoll(cloud, base, machine.warned.append).notice())
        async with asyncio.timeout(LONG_S):
            await machine.is_asked(2 if cloud == "gcp" else 4)
            assert not poll.done()
            machine.taken_back.set()
            assert await poll == notice
    assert machine.asked[:2] == (["0", ETAG] if cloud == "gcp" else machine.asked[:2])
    assert machine.tokens == (2 if cloud == "aws" else 0), "one that has ended is replaced"
    assert len(machine.warned) == (cloud == "aws")


async def test_google_is_asked_once_and_holds_the_question() -> None:
    machine = Machine()
    async with served(machine) as base:
        poll = asyncio.create_task(PreemptionPoll("gcp", base, machine.warned.append).notice())
        async with asyncio.timeout(LONG_S):
            await machine.is_asked(2)
            machine.taken_back.set()
            await poll
    assert machine.asked == ["0", ETAG], "the second question is the last one"


NOT_AZURES = words.not_the_clouds("Azure", "")
ANSWERS: dict[str, tuple[int, str, str]] = {
    "no such path": (404, "", words.wrong_status(404)),
    "a redirect to elsewhere": (302, "", words.wrong_status(302)),
    "markup of another program": (200, "<html>", NOT_AZURES),
    "JSON of another shape": (200, json.dumps([1]), NOT_AZURES),
    "more than anybody needs": (200, "x" * (MOST_BYTES + 1), connection.answer_too_long(MOST_BYTES)),
}


@pytest.mark.parametrize(("status", "body", "why"), ANSWERS.values(), ids=ANSWERS)
async def test_other_answers_cause_one_warning_and_have_no_effect(status: int, body: str, why: str) -> None:
    warned, questions = list[str](), asyncio.Semaphore(0)

    async def answer(request: web.Request) -> web.Response:
        questions.release()
        is_name = request.path.endswith("name")
        return web.Response(text=NAME) if is_name else web.Response(status=status, text=body, headers=elsewhere)

    elsewhere = {"Location": "http://192.0.2.1/"} if status == 302 else {}
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with listening(app) as base:
        poll = asyncio.create_task(PreemptionPoll("azure", base, warned.append).notice())
        async with asyncio.timeout(LONG_S):
            for _ in range(6):
                await questions.acquire()
        assert not poll.done()
        poll.cancel()
    (said,) = warned
    reason = message_fields(said, words.no_answer, cloud="Azure")["why"]
    assert reason.startswith(why)


async def test_a_token_that_would_become_several_headers_is_not_sent_back() -> None:
    asked = list[web.Request]()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(text="token\r\nX-Injected: yes")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with listening(app) as base:
        warned: asyncio.Queue[str] = asyncio.Queue()
        poll = asyncio.create_task(PreemptionPoll("aws", base, warned.put_nowait).notice())
        async with asyncio.timeout(LONG_S):
            said = await warned.get()
        poll.cancel()
    why = clip(connection.unsendable("X-aws-ec2-metadata-token"), 80)
    assert message_fields(said, words.no_answer, cloud="AWS")["why"].startswith(why)
    assert {request.method for request in asked} == {"PUT"}


async def test_a_machine_outside_any_cloud_gets_a_message() -> None:
    async with listening(web.Application()) as base:
        pass
    warned: asyncio.Queue[str] = asyncio.Queue()
    poll = asyncio.create_task(PreemptionPoll("gcp", base, warned.put_nowait).notice())
    async with asyncio.timeout(LONG_S):
        assert has_message(await warned.get(), words.no_answer, cloud="Google")
    assert not poll.done()
    poll.cancel()


def test_the_clouds_of_the_command_line_match_the_table() -> None:
    assert tuple(CLOUDS) == preemption.CLOUDS
