"""Preemption notices from a cloud's metadata service: what each cloud offers its own machines, one row a cloud.

A service answers plain HTTP at an address that only its own machine can reach. Google's service holds the request until
something changes, so its notice arrives at once. The others are asked every few seconds. An answer can only make this
agent leave. If a service does not answer, the agent logs it once and continues to ask.
"""

import asyncio
from collections.abc import Callable, Mapping
from json import loads

from msgspec import Struct
from rdzv_protocol.text import clip, printable

from node_agent.features.preemption import words
from node_agent.kernel.transport.http_client import FAILURES, HttpConnection

CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S = 5.0, 75.0
"""Seconds to connect, and seconds to get an answer: longer than any service may hold a request."""
AGAIN_S = 5.0
"""Seconds to pause after a request without an answer."""
MOST_BYTES = 65_536
"""Most bytes to read of a service's answer."""
SHOWN = 200


class Answer(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: str


class MetadataRequest(Struct, frozen=True):
    """A request. In its path and headers, `{known}` and `{etag}` are replaced by values from earlier answers."""

    path: str
    headers: Mapping[str, str]
    method: str = "GET"


class Cloud(Struct, frozen=True, kw_only=True):
    """How one cloud announces the preemption of a machine."""

    name: str
    base: str
    """Address of the service, the same for all machines."""
    first: MetadataRequest | None = None
    """Request for a value that `asked` needs, such as a token or the machine's name. Its answer becomes `{known}`
    there."""
    asked: MetadataRequest
    every_s: float
    """Seconds between two answers."""
    reads: Callable[[Answer, str], str]
    """Return the notice in words, from the answer and the known value; empty if there is none. Raises `ValueError`."""


class Unanswered(Exception):
    """A request without an answer. `str(error)` says what went wrong."""


def _aws(answer: Answer, known: str) -> str:
    """Return the notice of AWS, which answers 404 until two minutes before the end."""
    if answer.status == 404:
        return ""
    document = loads(answer.body)
    return words.aws_takes_back(document["action"], document["time"])


def _google(answer: Answer, known: str) -> str:
    if answer.headers.get("metadata-flavor") != "Google":
        raise ValueError(words.NOT_GOOGLES)
    return words.GOOGLE_TAKES_BACK if answer.body.strip() == "TRUE" else ""


_AZURE_ENDS = ("Preempt", "Terminate", "Redeploy", "Reboot")
"""Events that end all processes of the machine. `Freeze` is only a pause of a few seconds."""


def _azure(answer: Answer, known: str) -> str:
    """Return the notice of Azure, whose list names the events of all machines of a scale set."""
    for event in loads(answer.body)["Events"]:
        if event["EventType"] in _AZURE_ENDS and known in event["Resources"]:
            return words.azure_takes_back(event["EventType"], known, event.get("NotBefore") or "now")
    return ""


LINK_LOCAL = "http://169.254.169.254"
_OF_AZURE = {"Metadata": "true"}
CLOUDS = {
    "aws": Cloud(
        name="AWS",
        base=LINK_LOCAL,
        first=MetadataRequest("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}, "PUT"),
        asked=MetadataRequest("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": "{known}"}),
        every_s=5.0,
        reads=_aws,
    ),
    "gcp": Cloud(
        name="Google",
        base=LINK_LOCAL,
        asked=MetadataRequest(
            "/computeMetadata/v1/instance/preempted?wait_for_change=true&timeout_sec=60&last_etag={etag}",
            {"Metadata-Flavor": "Google"},
        ),
        every_s=0.1,
        reads=_google,
    ),
    "azure": Cloud(
        name="Azure",
        base=LINK_LOCAL,
        first=MetadataRequest("/metadata/instance/compute/name?api-version=2021-02-01&format=text", _OF_AZURE),
        asked=MetadataRequest("/metadata/scheduledevents?api-version=2020-07-01", _OF_AZURE),
        every_s=1.0,
        reads=_azure,
    ),
}


class PreemptionPoll:
    """Watches for the preemption of this machine. `base`: overrides the cloud's address. `warn`: reports problems."""

    def __init__(self, cloud: str, base: str, warn: Callable[[str], None]) -> None:
        self._cloud = CLOUDS[cloud]
        host, _, port = (base or self._cloud.base).removeprefix("http://").rstrip("/").partition(":")
        self._host, self._port = host, int(port or 80)
        self._warn = warn
        self._known = ""
        self._etag = "0"
        self._is_warned = False

    async def notice(self, looked: Callable[[], object] = lambda: None) -> str:
        """Wait until the cloud announces the preemption. Return how, for people.

        `looked` is called after each request without a notice.
        """
        while True:
            try:
                if notice := await self._ask():
                    return clip(printable(notice), SHOWN)
                self._is_warned, pause_s = False, self._cloud.every_s
            except Unanswered as error:
                pause_s = AGAIN_S
                self._warn_once(str(error))
            looked()
            await asyncio.sleep(pause_s)

    def _warn_once(self, why: str) -> None:
        if not self._is_warned:
            self._warn(words.no_answer(self._cloud.name, f"{self._host}:{self._port}", why))
        self._is_warned = True

    async def _ask(self) -> str:
        cloud = self._cloud
        if cloud.first and not self._known:
            self._known = (await self._answer(cloud.first, (200,))).body.strip()
        try:
            answer = await self._answer(cloud.asked, (200, 404) if cloud.reads is _aws else (200,))
        except Unanswered:
            self._known, self._etag = "", "0"  # a token expires, and a machine may get another name
            raise
        try:
            notice = cloud.reads(answer, self._known)
        except (ValueError, KeyError, TypeError) as error:
            raise Unanswered(words.not_the_clouds(cloud.name, clip(printable(str(error)), 80))) from None
        self._etag = answer.headers.get("etag", self._etag)
        return notice

    async def _answer(self, request: MetadataRequest, good: tuple[int, ...]) -> Answer:
        """Return the answer of the service. Raises `Unanswered` if there is none, or if its status is not in `good`."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await self._exchange(request)
        except TimeoutError:
            raise Unanswered(words.NO_ANSWER_IN_TIME) from None
        except (*FAILURES, UnicodeError, RuntimeError) as error:  # the look-up of a name needs a thread
            raise Unanswered(clip(printable(str(error) or type(error).__name__), 80)) from None
        if answer.status not in good:
            raise Unanswered(words.wrong_status(answer.status))
        return answer

    async def _exchange(self, request: MetadataRequest) -> Answer:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            streams = await asyncio.open_connection(self._host, self._port)
        known = {"known": self._known, "etag": self._etag}
        headers = {name: text.format(**known) for name, text in request.headers.items()}
        headers |= {"Host": self._host, "Connection": "close"}
        http = HttpConnection(streams, MOST_BYTES)
        try:
            head = await http.ask(request.method, request.path.format(**known), headers.items())
            body = await http.body()
        finally:
            http.close()
        return Answer(head.status_code, head.headers, body.decode(errors="replace"))
