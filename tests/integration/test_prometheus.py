"""A real Prometheus: its view of a real run, and the alert rules and the dashboard that we deliver."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from node_agent.features.metrics import words as metrics
from rdzv_server.http.metrics import METRICS
from tests.support.certificates import Authority
from tests.support.cluster import Cluster
from tests.support.message_search import pattern
from tests.support.prometheus import Prometheus, promtool

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "rdzv-server.json").read_text())


async def test_a_killed_worker_is_a_restart_in_prometheus_and_a_failed_run_an_alert(
    cluster: Cluster, tmp_path: Path
) -> None:
    flags = ("--nnodes", "2", "--run-id", "watched", "--max-restarts", "1", "--metrics-port", "0")
    workers = await cluster.nodes("ab", *flags)
    ports = [urlsplit((await agent.line(pattern(metrics.place)))["url"]).netloc for agent in cluster.agents.values()]
    targets = {"rdzv-server": [cluster.endpoint], "node-agent": ports}
    prometheus = await Prometheus.watch(tmp_path, targets, RULES)
    await prometheus.shows('sum(rdzv_agent_workers{state="running"})', 4)
    await prometheus.shows('rdzv_runs{phase="running"}', 1)
    await prometheus.shows('rdzv_run_nodes{run_id="watched", state="running"}', 2)
    await prometheus.shows('rdzv_restarts_total{cause="worker_failure", charged="true"}', 0)

    workers[0].kill()
    workers = await cluster.hub.group(4)
    await prometheus.shows('rdzv_restarts_total{cause="worker_failure", charged="true"}', 1)
    await prometheus.shows('rdzv_run_restarts_total{run_id="watched", cause="worker_failure"}', 1)
    await prometheus.shows('rdzv_run_restarts_left{run_id="watched"}', 0)
    await prometheus.shows("sum(rdzv_time_to_recover_seconds_count)", 1)
    await prometheus.shows("sum(rdzv_agent_rounds_started_total)", 4)
    assert 0 < (await prometheus.value('rdzv_lost_seconds_total{cause="worker_failure"}') or 0) < 30
    median = "histogram_quantile(0.5, sum by (le) (rdzv_time_to_recover_seconds_bucket))"
    assert 0 < (await prometheus.value(median) or 0) < 30

    workers[0].kill()
    for agent in cluster.agents.values():
        assert await agent.exit_code() == 1
    await prometheus.fires("RdzvRunFailed")


# Our rules and samples.


def deployed_alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def expressions(value: Any) -> Iterator[str]:
    """Yield every query within a dashboard or rules."""
    if isinstance(value, list):
        for each in value:
            yield from expressions(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in ("expr", "query") and isinstance(each, str):
                yield each
            else:
                yield from expressions(each)


KINDS = {"gauge": {""}, "counter": {""}, "histogram": {"_bucket", "_count", "_sum"}}
SERIES = {f"{metric.name}{suffix}": set(metric.labels) for metric in METRICS for suffix in KINDS[metric.kind]}
OF_EVERY_PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"}
OF_PROMETHEUS = {"job", "instance", "le"}


@pytest.mark.parametrize("document", [DASHBOARD, deployed_alerts()], ids=["dashboard", "alerts"])
def test_every_query_names_metrics_and_labels_that_there_are(document: Any) -> None:
    queries = [each for each in expressions(document) if "rdzv_" in each or "process_" in each]
    assert len(queries) >= len(deployed_alerts()) - 1  # one is about `up` alone
    for query in queries:
        for name, selector in re.findall(r"\b((?:rdzv|process)_\w+)(?:\{([^}]*)\})?", query):
            assert name in SERIES or name in OF_EVERY_PROCESS, query
            labels = set(re.findall(r"(\w+)\s*[!=]", selector))
            assert labels <= SERIES.get(name, set()) | OF_PROMETHEUS, query
        known = set().union(*(SERIES.get(name, ()) for name in metrics_of(query)))
        for grouped in re.findall(r"\bby \(([^)]*)\)", query):
            assert set(re.findall(r"\w+", grouped)) <= known | OF_PROMETHEUS, query


def metrics_of(text: str) -> set[str]:
    return set(re.findall(r"\b(?:rdzv|process)_\w+", text))


def test_every_metric_of_an_alert_is_on_the_dashboard_and_every_mentioned_metric_exists() -> None:
    shown = {name for query in expressions(DASHBOARD) for name in metrics_of(query)}
    asked = {name for query in expressions(deployed_alerts()) for name in metrics_of(query)}
    assert len(asked) > 10 and asked <= shown
    texts = [DASHBOARD["description"], *(panel.get("description", "") for panel in DASHBOARD["panels"])]
    texts += [text for rule in deployed_alerts() for text in rule["annotations"].values()]
    assert metrics_of(" ".join(texts)) <= {metric.name for metric in METRICS}


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load((RULES.parent / "alerts-test.yaml").read_text())["tests"]
    asked = [(each["alertname"], bool(each["exp_alerts"])) for test in tests for each in test["alert_rule_test"]]
    names = {rule["alert"] for rule in deployed_alerts()}
    assert set(asked) == {(name, comes) for name in names for comes in (True, False)}
    tested = promtool("test", "rules", "alerts-test.yaml", cwd=RULES.parent)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_prometheus_takes_the_configuration() -> None:
    checked = promtool("check", "config", "prometheus.yaml", cwd=RULES.parent)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(deployed_alerts())} rules found" in checked.stdout


def unknown(document: Any, model: Any, path: str = "") -> list[str]:
    """Return the paths of the dashboard that Grafana's model does not have, or has with another value."""
    if isinstance(document, dict) and isinstance(model, dict):
        return [line for key in document for line in unknown(document[key], model.get(key), f"{path}.{key}")]
    if isinstance(document, list) and isinstance(model, list) and len(document) == len(model):
        return [line for n, each in enumerate(document) for line in unknown(each, model[n], f"{path}[{n}]")]
    return [] if document == model else [path]


def in_grafanas_words(document: Any) -> Any:
    """Return the dashboard as Grafana's published model has it."""
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def test_the_dashboard_is_what_grafanas_model_allows() -> None:
    assert unknown(DASHBOARD, in_grafanas_words(DASHBOARD)) == []
    wrong = {**DASHBOARD, "refrehs": "1s"}
    assert unknown(wrong, in_grafanas_words(wrong)) == [".refrehs"]
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["targets"] for panel in panels)


async def test_every_query_of_the_dashboard_is_answered_by_a_real_prometheus(
    cluster: Cluster, authority: Authority, tmp_path: Path
) -> None:
    """Variables are replaced by hand, because there is no Grafana here."""
    cert, key = authority.issue("server")
    await cluster.serve("--tls-cert", cert, "--tls-key", key)
    prometheus = await Prometheus.watch(tmp_path, {"rdzv-server": [cluster.endpoint]}, ca=authority.ca)
    workers = await cluster.nodes("a", "--run-id", "shown", "--tls-ca", authority.ca)
    for step in (1, 2):  # without progress a run has no ratio of training time
        await workers[0].tell(f"progress {step}")
    await prometheus.shows('rdzv_runs{phase="running"}', 1)
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$job", ".*").replace("$run_id", ".*").replace("$__rate_interval", "1m")
            await prometheus.answers(query)
    await cluster.finish(workers)


def test_each_alert_leads_to_a_section_of_the_docs() -> None:
    for alert in deployed_alerts():
        page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        headings = re.findall("^#+ (.*)$", (DEPLOY.parent / page).read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in anchors, alert["alert"]
