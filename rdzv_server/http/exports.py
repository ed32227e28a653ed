"""Exports of the server, by its settings: events to a file and to a webhook, a command for each excluded node, and
traces of rounds. No failure of an export affects a run."""

import asyncio
import logging
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from rdzv_server.auth.reload import exposure
from rdzv_server.config import ServerConfig
from rdzv_server.service.event_file import EventFile
from rdzv_server.service.exclusion_command import ExclusionCommand
from rdzv_server.service.interface import Service
from rdzv_server.threads import in_thread_or_here, read_again
from rdzv_server.words import exports as words

if TYPE_CHECKING:
    from rdzv_server.http.webhook import Webhook
    from rdzv_server.service.traces import RoundTraces

log = logging.getLogger("rdzv_server")

PAUSE_S = 5.0
"""Seconds until an export runs again after an error of the server in it."""


class BadExport(ValueError):
    """Fault of an export's setting, in one line that names the flag and says what to do."""


class Exports:
    """Exports of one server, which work while this context is entered."""

    def __init__(self, config: ServerConfig, service: Service, port: int) -> None:
        """Prepare the exports that the settings ask for. `port`: the server's port. Raises `BadExport`."""
        self._config = config
        self._tasks: list[asyncio.Task[None]] = []
        self._file: EventFile | None = None
        self._webhook: Webhook | None = None
        if config.event_log is not None:
            try:
                self._file = EventFile(config.event_log)
            except OSError as error:
                raise BadExport(words.bad_event_log(config.event_log, error.strerror or str(error))) from None
            service.observe(self._file.observe)
        self._command: ExclusionCommand | None = None
        if config.on_exclude is not None:
            self._command = ExclusionCommand(config.on_exclude)
            service.observe(self._command.observe)
        if config.webhook is not None:
            from rdzv_server.http import webhook  # imports aiohttp's client

            _check_url(config.webhook)
            self._webhook = webhook.Webhook(service, config.webhook, self._read_secret())
            service.observe(self._webhook.observe)
        self._traces: RoundTraces | None = None
        if config.otel:
            from rdzv_server.service import traces

            self._traces = traces.RoundTraces(service, port)

    @property
    def has_files(self) -> bool:
        """Whether the exports have files to open or to read again."""
        return self._file is not None or self._webhook is not None

    async def __aenter__(self) -> Self:
        for export in (self._file, self._webhook, self._command):
            if export is not None:
                self._tasks.append(asyncio.create_task(_keep_running(export)))
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._file:
            await self._file.close()
        if self._traces:
            await in_thread_or_here(self._traces.close)

    async def renew(self) -> None:
        """Open the event log again, in case it was moved, and read the secret again; keep the old one if that fails."""
        if self._file:
            self._file.reopen()
        if self._webhook:
            try:
                self._webhook.secret = await read_again(self._read_secret, [self._config.webhook_secret_file or ""])
            except BadExport as error:
                log.error(words.secret_not_renewed(str(error)))

    def _read_secret(self) -> bytes:
        path = self._config.webhook_secret_file or ""
        try:
            with open(path, "rb") as file:
                secret = file.read(4_096).strip()
            warning = exposure("--webhook-secret-file", path)
        except OSError as error:
            raise BadExport(words.unreadable_secret(path, error.strerror or str(error))) from None
        if not secret:
            raise BadExport(words.empty_secret(path))
        if warning:
            log.warning(warning)
        return secret


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise BadExport(words.BAD_URL)


async def _keep_running(export: "EventFile | Webhook | ExclusionCommand") -> None:
    """Run an export, and again after each error that ends it."""
    while True:
        try:
            await export.run()
        except Exception:
            log.exception(words.export_failed(type(export).__name__, PAUSE_S))
        await asyncio.sleep(PAUSE_S)
