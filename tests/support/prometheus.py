"""Prometheus for tests: a real server, its promtool, and the text format that both read."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]


def need_prometheus() -> None:
    """Skip the test if there is no Prometheus on this machine."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("no prometheus here: tests/install-debian-packages.sh")


def promtool(*words: str, text: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What promtool says."""
    need_prometheus()
    return subprocess.run(["promtool", *words], input=text, cwd=cwd, capture_output=True, text=True, timeout=60)


class Scrape:
    """One answer of `/metrics`, as Prometheus' own parser reads it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        samples = [sample for family in self.families for sample in family.samples]
        self.samples = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        assert len(self.samples) == len(samples), "a series stands there twice"

    def __call__(self, name: str, **labels: str) -> float:
        """Value of the only series with these labels, beside others that it may have."""
        (value,) = self.all(name, **labels).values()
        return value

    def all(self, name: str, **labels: str) -> dict[Labels, float]:
        """Values of all series with these labels, by all of their labels."""
        return {key: value for key, value in self._named(name) if labels.items() <= dict(key).items()}

    def _named(self, name: str) -> Iterator[tuple[Labels, float]]:
        return ((labels, value) for (named, labels), value in self.samples.items() if named == name)
