"""Stand-in for the HTTPS APIs that an agent tells about its run: the API server of Kubernetes, and Kubeflow Trainer.

    async with kubernetes(folder) as api:
        api.objects["/apis/batch/v1/namespaces/ml/jobs/train"] = {"metadata": {"annotations": {"mine": "yes"}}}

It is as strict as the originals where an agent could be wrong. This is TLS, the bearer token (401), the verb, the path
(404), the media type of a patch (415), and JSON (400). Names and values of annotations and the schema of a TrainJob's
status are checked, too (422). A patch is merged as in RFC 7386. Errors are `Status` objects. `refusals` answers the
next requests instead.
"""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.certificates import Authority

Object = dict[str, Any]
TRAINER_PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs/train/status"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
MOST_ANNOTATION_BYTES = 256 * 1024


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """Objects of the API. `base`: its address, https://127.0.0.1:PORT."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self.ca, self.token_file = authority.ca, str(folder / "sa-token")
        self._pair = authority.issue("api")
        self.base = ""
        self.token = "first"
        self.objects: dict[str, Object] = {}
        self.statuses: list[Object] = []
        """Values of `trainerStatus` that were accepted."""
        self.refusals: list[tuple[int, dict[str, str]]] = []
        """Status and headers of the answers to the next requests, which change nothing."""
        self.delay: Callable[[], Any] = lambda: asyncio.sleep(0)
        self.requests = 0
        self.accepted = asyncio.Semaphore(0)
        self.rotate("first")

    def rotate(self, token: str) -> None:
        """Replace the token, in the pod's file, too."""
        self.token = token
        Path(self.token_file).write_text(token)

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._pair)
        return context

    async def is_told(self, times: int = 1) -> None:
        """Wait for this number of further accepted requests."""
        for _ in range(times):
            await self.accepted.acquire()

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        await self.delay()
        if self.refusals:
            status, headers = self.refusals.pop(0)
            return _status(status, "refused by the test", headers)
        try:
            if request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized")
            answer = self._post(request, await _json(request)) if request.path == TRAINER_PATH else None
            answer = answer if answer is not None else self._patch(request, await _json(request))
        except Refusal as refusal:
            return _status(refusal.status, str(refusal))
        self.accepted.release()
        return web.json_response(answer)

    def _patch(self, request: web.Request, body: Any) -> Object:
        if request.path not in self.objects:
            raise Refusal(404, f'"{request.path.rpartition("/")[2]}" not found')
        if request.method != "PATCH":
            raise Refusal(405, "the server does not allow this method on the requested resource")
        if request.content_type != "application/merge-patch+json":
            raise Refusal(415, "the body of the request was in an unknown format")
        merged = merge(self.objects[request.path], body)
        annotations = merged.get("metadata", {}).get("annotations", {})
        for key, value in annotations.items():
            if not _KEY.fullmatch(key) or not isinstance(value, str):
                raise Refusal(422, f"metadata.annotations: Invalid value: {key}")
        if sum(len(each.encode()) for pair in annotations.items() for each in pair) > MOST_ANNOTATION_BYTES:
            raise Refusal(422, "metadata.annotations: Too long: may not be more than 262144 bytes")
        self.objects[request.path] = merged
        return merged

    def _post(self, request: web.Request, body: Any) -> Object:
        if request.method != "POST" or request.content_type != "application/json":
            raise Refusal(405, "POST application/json")
        status = body.get("trainerStatus") if isinstance(body, dict) else None
        if not isinstance(status, dict) or status.keys() - {"progressPercentage", "metrics", "lastUpdatedTime"}:
            raise Refusal(422, "Invalid payload")
        for metric in status.get("metrics", []):
            if metric.keys() != {"name", "value"} or not all(
                isinstance(each, str) and each for each in metric.values()
            ):
                raise Refusal(422, "Invalid payload: metrics")
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", status.get("lastUpdatedTime", "")):
            raise Refusal(422, "Invalid payload: lastUpdatedTime")
        self.statuses.append(status)
        return body


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError:
        raise Refusal(400, "the object provided is unrecognized") from None


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), value)
    return merged


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code, headers=headers)


@asynccontextmanager
async def kubernetes(folder: Path) -> AsyncIterator[Api]:
    """Yield the API, which listens on a port of loopback."""
    api, app = Api(folder), web.Application()
    app.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=api.context()).start()
        api.base = f"https://127.0.0.1:{runner.addresses[0][1]}"
        yield api
    finally:
        await runner.cleanup()
