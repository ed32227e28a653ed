"""Receiver of a webhook on a real socket: keeps the requests that it acknowledges, and refuses when told to."""

import asyncio
import json
import ssl
from typing import Any, Self

from aiohttp import web

PATIENCE_S = 30.0


class WebhookReceiver:
    """Receiver of a webhook. `answers`: statuses of the next requests. The status after them is 200.

    `tls`: its TLS context; None for plain HTTP.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.answers: list[int] = []
        self.requests = 0
        self.raw: list[tuple[dict[str, str], bytes]] = []
        """Headers and body of each acknowledged request."""
        self.first_numbers: list[int] = []
        """Number of the first event of each request, acknowledged or not."""
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._take))
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}/events"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    def numbers(self, run_id: str) -> list[int]:
        """Return the numbers of the run's events in the order of arrival, without copies."""
        seen: list[int] = []
        for event in self._events.get(run_id, []):
            if event["number"] not in seen:
                seen.append(event["number"])
        return seen

    async def has(self, run_id: str, number: int) -> None:
        """Return when the event of this number has been acknowledged."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: number in self.numbers(run_id))

    async def was_asked(self) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: self.requests > 0)

    async def _take(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        events = json.loads(body)["events"]
        status = self.answers.pop(0) if self.answers else 200
        async with self._changed:
            self.requests += 1
            self.first_numbers.append(events[0]["number"])
            if status == 200:
                self.raw.append((dict(request.headers), body))
                self._events.setdefault(json.loads(body)["run_id"], []).extend(events)
            self._changed.notify_all()
        return web.Response(status=status)
