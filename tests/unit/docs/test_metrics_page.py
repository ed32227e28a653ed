"""docs/reference/metrics.md has all metrics, in the order and words of the code."""

import re
from collections.abc import Sequence
from pathlib import Path

from rdzv_protocol.exposition import Metric

from node_agent.features.metrics import feature as agent
from rdzv_server.http.metrics import METRICS
from tests.support.prometheus import promtool

PAGE = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()


def rows(metrics: Sequence[Metric]) -> list[str]:
    return [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in metrics
    ]


def table_of(heading: str) -> list[str]:
    section = re.split(r"^## ", PAGE[PAGE.index(f"## {heading}\n") + 3 :], flags=re.MULTILINE)[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


def test_the_page_has_every_metric_of_the_server() -> None:
    assert table_of("Metrics of the server") == rows(METRICS)


def test_the_page_has_every_metric_of_an_agent() -> None:
    assert table_of("Metrics of an agent") == rows(agent.METRICS)


def test_prometheus_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    (config,) = re.findall(r"^```yaml\n(.+?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "prometheus.yaml").write_text(config)
    checked = promtool("check", "config", "--syntax-only", str(tmp_path / "prometheus.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
