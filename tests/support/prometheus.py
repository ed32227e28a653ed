"""Prometheus for tests: a real server, its promtool, and the text format that both read."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.programs import PATIENCE_S, Program, get

Labels = frozenset[tuple[str, str]]


def need_prometheus() -> None:
    """Skip the test if Prometheus is not installed."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("no prometheus here: tests/install-debian-packages.sh")


def promtool(*words: str, text: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool and return its exit code and output."""
    need_prometheus()
    return subprocess.run(["promtool", *words], input=text, cwd=cwd, capture_output=True, text=True, timeout=60)


class Scrape:
    """One answer of `/metrics`, parsed by Prometheus' own parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        samples = [sample for family in self.families for sample in family.samples]
        self.samples = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(self.samples) == len(samples), "a series stands there twice"

    def __call__(self, name: str, **labels: str) -> float:
        """Return the value of the only series that has these labels, perhaps among others."""
        (value,) = self.all(name, **labels).values()
        return value

    def all(self, name: str, **labels: str) -> dict[Labels, float]:
        """Return the values of all series with these labels, by all of their labels."""
        return {key: value for key, value in self._named(name) if labels.items() <= dict(key).items()}

    def _named(self, name: str) -> Iterator[tuple[Labels, float]]:
        return ((labels, value) for (named, labels), value in self.samples.items() if named == name)


class Prometheus(Program):
    """A real Prometheus on loopback, which scrapes and evaluates rules twice a second."""

    port: int

    @classmethod
    async def watch(
        cls, folder: Path, targets: Mapping[str, Sequence[str]], rules: Path | None = None, ca: str = ""
    ) -> Self:
        """Start it with its data in `folder`. `targets`: HOST:PORT of the programs to scrape, by job name.

        `ca`: file of the authority of their certificates; empty without TLS.
        """
        need_prometheus()
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(rules)] if rules else [],
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [{"targets": list(places)}],
                    **({"scheme": "https", "tls_config": {"ca_file": ca}} if ca else {}),
                }
                for job, places in targets.items()
            ],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        prometheus = await cls.start(
            "prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0", "--log.level=info",
        )  # fmt: skip
        prometheus.port = int((await prometheus.line(r"Listening on.*address=127\.0\.0\.1:(\d+)"))[1])
        await prometheus.line("Server is ready to receive web requests")
        return prometheus

    async def value(self, query: str) -> float | None:
        """Return the value of the only series that the query returns, None if there is none."""
        result = await self.series(query)
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else None

    async def answers(self, query: str) -> None:
        """Return when the query has a result. A rate needs two samples."""

        async def has_come() -> bool:
            return bool(await self.series(query))

        await _until(has_come, query)

    async def series(self, query: str) -> list[Any]:
        """Return the present series of the query."""
        return list((await self._ask(f"query?{urlencode({'query': query})}"))["result"])

    async def shows(self, query: str, value: float) -> None:
        """Return when the query has this value."""

        async def has_come() -> bool:
            return await self.value(query) == value

        await _until(has_come, query)

    async def fires(self, name: str) -> str:
        """Return the alert's summary when it fires."""
        summaries: dict[str, str] = {}

        async def has_come() -> bool:
            for alert in (await self._ask("alerts"))["alerts"]:
                if alert["state"] == "firing":
                    summaries[alert["labels"]["alertname"]] = alert["annotations"]["summary"]
            return name in summaries

        await _until(has_come, name)
        return summaries[name]

    async def _ask(self, path: str) -> Any:
        answer = await get(f"http://127.0.0.1:{self.port}/api/v1/{path}")
        return json.loads(answer)["data"]


async def _until(has_come: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await has_come():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"in vain: {what}") from None
