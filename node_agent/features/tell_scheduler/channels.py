"""Channels to schedulers: where each of them shows text about a job, and how to send it.

- Slurm: the comment of the job, by `scontrol`. The owner of a job may change it.
- Kubernetes: annotations of an object, by a merge patch to the API server with the pod's service account.
- Kubeflow Trainer from version 2.2: `status.trainerStatus` of the TrainJob, by a request to Trainer's controller.

Files are read again for each message, because tokens and certificates are replaced.
"""

import asyncio
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from json import dumps, loads
from typing import Any, Protocol
from urllib.parse import urlsplit

from rdzv_protocol.messages import RunSummary
from rdzv_protocol.text import clip, one_line, printable

from node_agent.features.tell_scheduler import words
from node_agent.kernel.processes.bounded_command import run_bounded
from node_agent.kernel.threads import in_thread
from node_agent.kernel.transport import name_lookup
from node_agent.kernel.transport.http_client import FAILURES, HttpConnection, authority

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Folder with `token`, `ca.crt` and `namespace` in each pod that has a service account."""
PATHS = {
    "job": "/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
    "jobset": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}",
    "trainjob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}",
    "leaderworkerset": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets/{name}",
    "pod": "/api/v1/namespaces/{namespace}/pods/{name}",
}
PREFIX = "rdzv-server/"
"""Prefix of annotations, the same as of the labels in `deploy/kubernetes`."""
COMMAND_S = 8.0
"""Most seconds that scontrol may take."""
READ_S = 5.0
"""Most seconds to read the files of a token and of a certificate."""
MOST_BYTES = 262_144
"""Most bytes of an answer, which contains the object."""
COMMENT_BYTES, SHOWN = 400, 160


class NotInside(Exception):
    """This process does not run inside the scheduler. `str(error)` is the sentence about it."""


class Untold(Exception):
    """The scheduler did not accept the message. `again_s`: seconds until it accepts the next one; None if unknown."""

    def __init__(self, why: str, again_s: float | None = None) -> None:
        super().__init__(why)
        self.again_s = again_s


class Channel(Protocol):
    """Way to show the run in one scheduler."""

    where: str
    """Scheduler and job, for people."""
    every_s: float
    """Least seconds between two messages."""

    async def send(self, summary: RunSummary) -> None:
        """Send the summary. Raises `Untold`."""


def channel(wanted: tuple[str, str, str], environment: Mapping[str, str]) -> Channel:
    """Return the channel that `--tell-scheduler` names. Raises `NotInside`, and `OSError` for an unreadable file."""
    which, kind, name = wanted
    if which == "slurm":
        return SlurmComment(_given(environment, "SLURM_JOB_ID", words.SLURM), environment)
    if which == "trainer":
        url, ca, token = (_given(environment, f"KUBEFLOW_TRAINER_SERVER_{each}", words.TRAINER) for each in _TRAINER)
        return TrainerStatus(url, Files(ca, token))
    host = _given(environment, "KUBERNETES_SERVICE_HOST", words.KUBERNETES)
    port = int(environment.get("KUBERNETES_SERVICE_PORT") or 443)
    files = Files(f"{SERVICE_ACCOUNT}/ca.crt", f"{SERVICE_ACCOUNT}/token")
    try:
        with open(f"{SERVICE_ACCOUNT}/namespace") as file:
            namespace = file.read().strip()
    except FileNotFoundError:
        raise NotInside(words.not_inside(words.KUBERNETES, SERVICE_ACCOUNT)) from None
    return Annotations(Api(host, port, files), kind, name, namespace)


_TRAINER = ("URL", "CA_CERT", "TOKEN")


def _given(environment: Mapping[str, str], name: str, scheduler: str) -> str:
    if value := environment.get(name):
        return value
    raise NotInside(words.not_inside(scheduler, name))


def in_short(summary: RunSummary) -> str:
    """Return the run in one line."""
    return printable(
        words.run_in_short(
            summary.phase, summary.nodes, summary.step, summary.checkpoint_step, summary.restarts,
            summary.charged_restarts, summary.max_restarts, summary.health, summary.sentence,
        )
    )  # fmt: skip


class SlurmComment:
    """Comment of a Slurm job."""

    every_s = 30.0

    def __init__(self, job: str, environment: Mapping[str, str]) -> None:
        self.where = words.comment_of(job)
        self._job, self._environment = job, environment

    async def send(self, summary: RunSummary) -> None:
        comment = clip(in_short(summary), COMMENT_BYTES)
        command = ("scontrol", "update", f"JobId={self._job}", f"Comment={comment}")
        try:
            exit_code, output = await run_bounded(command, self._environment, COMMAND_S)
        except OSError as error:
            raise Untold(f"scontrol: {error.strerror or error}") from None
        if exit_code != 0:
            raise Untold(words.command_failed(exit_code, one_line(output.splitlines()[:1])))


class Files:
    """Files with the certificate of an API's authority and with the token for it."""

    def __init__(self, ca: str, token: str) -> None:
        self._ca, self._token = ca, token

    async def read(self) -> tuple[ssl.SSLContext, str]:
        """Return a TLS context and the token, read from their files now. Raises `OSError`, such as `ssl.SSLError`."""
        return await in_thread(self._read, READ_S)

    def _read(self) -> tuple[ssl.SSLContext, str]:
        with open(self._token) as file:
            token = file.read().strip()
        return ssl.create_default_context(cafile=self._ca), token


class Api:
    """HTTPS API with a bearer token. Each request has a connection of its own."""

    def __init__(self, host: str, port: int, files: Files) -> None:
        self._host, self._port, self._files = host, port, files

    async def send(self, method: str, path: str, content_type: str, body: Any) -> None:
        """Send a request with this body as JSON. Raises `Untold` unless it succeeds."""
        try:
            status, told, again = await self._exchange(method, path, content_type, dumps(body).encode())
        except (*FAILURES, UnicodeError) as error:
            raise Untold(str(error) or type(error).__name__) from None
        if not 200 <= status < 300:
            raise Untold(words.wrong_status(status, _message(told)), float(again) if again.isdecimal() else None)

    async def _exchange(self, method: str, path: str, content_type: str, body: bytes) -> tuple[int, bytes, str]:
        context, token = await self._files.read()
        (_, address), *_ = await name_lookup.addresses(self._host, self._port)
        streams = await asyncio.open_connection(*address[:2], ssl=context, server_hostname=self._host)
        http = HttpConnection(streams, MOST_BYTES)
        headers = [
            ("Host", authority(self._host, self._port)),
            ("Authorization", f"Bearer {token}"),
            ("Content-Type", content_type),
            ("Accept", "application/json"),
            ("Connection", "close"),
        ]
        try:
            head = await http.ask(method, path, headers, body)
            return head.status_code, await http.body(), head.headers.get("retry-after", "")
        finally:
            http.close()


def _message(body: bytes) -> str:
    """Return the message of a `Status`, which Kubernetes sends with an error; empty if there is none."""
    try:
        return clip(str(loads(body)["message"]), SHOWN)
    except (ValueError, KeyError, TypeError):
        return ""


class Annotations:
    """Annotations of a Kubernetes object."""

    every_s = 15.0

    def __init__(self, api: Api, kind: str, name: str, namespace: str) -> None:
        self.where = words.annotations_of(kind, name, namespace)
        self._api = api
        self._path = f"{PATHS[kind].format(namespace=namespace, name=name)}?fieldManager=node-agent"

    async def send(self, summary: RunSummary) -> None:
        annotations = {f"{PREFIX}{name}": value for name, value in annotations_for(summary).items()}
        patch = {"metadata": {"annotations": annotations}}
        await self._api.send("PATCH", self._path, "application/merge-patch+json", patch)


def annotations_for(summary: RunSummary) -> dict[str, str | None]:
    """Return the annotations, without their prefix. None removes one that an earlier run has left."""
    restarts = words.restarts_of(summary.restarts, summary.charged_restarts, summary.max_restarts)
    return {
        "phase": summary.phase,
        "health": summary.health,
        "progress": None if summary.step is None else words.progress(summary.step, summary.checkpoint_step),
        "restarts": restarts,
        "reason": printable(summary.sentence),
    }


class TrainerStatus:
    """Status of a TrainJob of Kubeflow Trainer."""

    every_s = 15.0

    def __init__(self, url: str, files: Files) -> None:
        parts = urlsplit(url)
        self.where = words.TRAINER
        self._path = parts.path or "/"
        self._api = Api(parts.hostname or "", parts.port or 443, files)

    async def send(self, summary: RunSummary) -> None:
        known = {
            "phase": summary.phase,
            "health": summary.health,
            "nodes": summary.nodes,
            "step": summary.step,
            "checkpointStep": summary.checkpoint_step,
            "restarts": summary.restarts,
            "chargedRestarts": summary.charged_restarts,
        }
        metrics = [{"name": name, "value": str(value)} for name, value in known.items() if value is not None]
        status = {"metrics": metrics, "lastUpdatedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        await self._api.send("POST", self._path, "application/json", {"trainerStatus": status})
