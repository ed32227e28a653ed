"""Limits and defaults that pages for people name: the code's."""

import re
from pathlib import Path

import pytest
from rdzv_protocol import constraints, flag_values, queries, timing
from rdzv_protocol.settings import LAST_CALL_MOST_S, LAST_CALL_QUIET_S, RunSettings

from node_agent import survivors
from node_agent.cli import plan
from node_agent.features import recorded_errors
from node_agent.features.checks import pre_join, storage_helper
from node_agent.features.hangs import log_rules, progress_source
from node_agent.features.preemption import cloud_metadata
from node_agent.features.rules import feature as rules
from node_agent.kernel.failures import recorded_causes
from node_agent.kernel.output import disk_space, log_files, sinks
from node_agent.kernel.processes import process
from node_agent.kernel.workers import group
from rdzv_server import config
from rdzv_server.auth import tls_config
from rdzv_server.core import node_history
from rdzv_server.core.kernel import admission, event_sizes, kept_failures, silent_runs
from rdzv_server.core.nodes import cordons, exclusion
from rdzv_server.core.policies import stragglers
from rdzv_server.core.policies.hangs import examination, repeated_hangs
from rdzv_server.core.policies.network_check import network_policy
from rdzv_server.core.runs import kept_events, registry
from rdzv_server.core.views import health, watch_view
from rdzv_server.http import (
    agent_protocol,
    connection,
    connection_limits,
    events_endpoint,
    listener,
    page,
    request_handler,
    webhook,
)
from rdzv_server.service import event_file, exclusion_command, idle_shutdown, run_log, traces, watch
from rdzvctl import client, commands

DOCS = Path(__file__).parents[3] / "docs"
LIMITS, RUN = config.Limits(), RunSettings()
EVENTS_BYTES = kept_events.MEAN_BYTES * kept_events.MOST_EVENTS


def kib(size: int) -> str:
    return f"{size >> 10:,} KiB"


def mib(size: int) -> str:
    return f"{size >> 20:,} MiB"


def s(seconds: float) -> str:
    return f"{seconds:,g} s"


IN_WORDS = {4: "four", 6: "six"}
HOURS = {3_600.0: "an hour"}
*LOOKS, LAST_LOOK = (f"{age_s:g}" for age_s in group.LOOKS_S)
EQUAL_AGE = s(group.CAUSE_TIMEOUT_S / group.HELD_SHARE)
MORE_DIGITS = r"[,.]?\d"
# fmt: off
NAMED = {
    "how-to/secure-a-server.md": (
        f"In the last {tls_config.EXPIRES_SOON.days} days it logs a warning each day",
        f"| {s(LIMITS.handshake_s)} to the first byte", f"body | {s(LIMITS.request_s)} |",
        f"does not read | {s(LIMITS.unread_s)} |", f"requests | {s(LIMITS.idle_s)} |",
        f"requests of one peer | {LIMITS.requests.per_s:,g} a second, {LIMITS.requests.burst:,g} at once",
        f"refused tokens of one peer | {LIMITS.refusals.per_s:,g} a second, {LIMITS.refusals.burst:,g} at once",
        f"| {listener.MOST_HANDSHAKES}; half", f"headers together | {kib(request_handler.MOST_HEAD_BYTES)}",
        f"| a message | {kib(constraints.MAX_MESSAGE_BYTES)}", f"login form | {kib(page.MOST_LOGIN_BYTES)}",
        f"answers, together | {mib(connection_limits.MOST_HELD_BYTES)}",
        f"streams of events | {events_endpoint.MOST_STREAMS:,} at a time", f"latest {kept_events.EVENTS_KEPT:,}",
        f"`--max-events`: {kept_events.MOST_EVENTS:,}",
        f"each of `--max-events`, {mib(EVENTS_BYTES)}, and {kib(event_sizes.BLOCK_BYTES)} a run",
        f"each and {mib(EVENTS_BYTES)} of evidence",
        f"failures of all runs | {mib(kept_failures.MOST_BYTES)}, and {kib(kept_failures.LEAST_BYTES)} a run",
        f"evidence: {mib(kept_failures.MOST_BYTES)}, and up to {kib(kept_failures.LEAST_BYTES)} a run",
        f"every run keeps {kib(kept_failures.LEAST_BYTES)}",
        f"`--metrics-per-run`: {config.LISTED_RUNS}", f"`--max-runs`: {registry.MOST_RUNS:,}",
        f"`--max-agents`: {registry.MOST_AGENTS:,}", f"agents of a run | {admission.MOST_AGENTS:,}",
        f"of a new run | {s(admission.MOST_GRACE_S)}", f"cordons | {cordons.MOST_CORDONS:,}",
        f"at most {cordons.MOST_EXCLUSIONS}", f"run's own, {cordons.MOST_OF_RUN}",
        f"after {silent_runs.GIVES_PLACE_S / 60:g} minutes",
    ),
    "../CHANGELOG.md": (f"from {tls_config.EXPIRES_SOON.days} days before its certificate",),
    "development/adr/0014-root-cause-of-failures.md": (
        f"mark more than {s(recorded_causes.CONTINUES_S)} before the loss", f"among the last {sinks.TAIL_LINES} lines",
        f"more than {s(recorded_causes.CONTINUES_S)} after the error",
        f"more than {HOURS[recorded_causes.NOTICED_WITHIN_S]} after the error",
        f"wrongly for up to {HOURS[recorded_causes.NOTICED_WITHIN_S]}",
    ),
    "development/adr/0055-success-before-an-eviction.md": (
        f"except {IN_WORDS[len(group.LOOKS_S)]} times in a worker's first {LAST_LOOK} s: after {LOOKS[0]} s",
        f"for {group.HELD_SHARE * 100:g} % of the worker's age**, at most {s(group.CAUSE_TIMEOUT_S)}",
        f"From an age of {EQUAL_AGE} on",
    ),
    "development/adr/0072-agent-requests-without-aiohttp.md": (
        f"at most {agent_protocol.MOST_HEADERS} headers",
        f"at most {kib(agent_protocol.MOST_BYTES)} with", f"at most {IN_WORDS[agent_protocol.MOST_PIECES]} pieces",
    ),
    "explanation/failures.md": (
        f"handlers {', '.join(LOOKS)} and {LAST_LOOK} s after",
        f"more than {s(recorded_causes.CONTINUES_S)} after the error",
        f"more than {HOURS[recorded_causes.NOTICED_WITHIN_S]} after the error",
        f"named for up to {HOURS[recorded_causes.NOTICED_WITHIN_S]} after",
        f"within {group.HELD_SHARE * 100:g} % of the worker's age", f"(from {EQUAL_AGE} on: within",
        f"the report of this success waits up to {s(group.CAUSE_TIMEOUT_S)} for the errors",
        f"error that it finds within {s(recorded_errors.LOOK_WITHIN_S)}",
    ),
    "explanation/threat-model.md": (
        f"line and headers | {kib(request_handler.MOST_HEAD_BYTES)}",
        f"no token is set | {kib(constraints.MAX_MESSAGE_BYTES)}", f"up to {mib(connection.MOST_DROPPED)}",
        f"a turn for each {kib(connection.READ_BYTES)}", f"at most {kib(connection.READ_BYTES)} are read",
        f"`POST /login` | {kib(page.MOST_LOGIN_BYTES)} and one page",
    ),
    "how-to/bad-nodes.md": (
        f"file of {mib(storage_helper.BYTES)}",
        f"at most {pre_join.TAIL_LINES} lines and {pre_join.EVIDENCE_BYTES} bytes",
        f"and then {mib(queries.PAIR_TEST_BYTES)} each", f"within {s(network_policy.ANSWERED_WITHIN_S)}",
        f"| {s(network_policy.LONGEST_S)} have passed", f"lost within {s(exclusion.TOGETHER_S)}",
        f"unfit within {s(exclusion.TOGETHER_S)}",
        f"latest {node_history.MOST_INCIDENTS:,} incidents of up to {node_history.MOST_NODES} nodes",
        f"kills it after {s(exclusion_command.LIMIT_S)}",
    ),
    "how-to/detect-hangs.md": (
        f"more than {s(log_rules.CPU_S)} of processor time",
        f"first progress of a round | {s(progress_source.UNSEEN_START_S)} |",
        f"ten steps after it | {s(progress_source.UNSEEN_S)} |",
        f"loading of an epoch were reported | {s(progress_source.UNSEEN_S)} |",
        f"until a checkpoint was reported | {s(progress_source.UNSEEN_S)} |",
        f"at least {s(progress_source.SHORTEST_START_S)}",
        f"longest of them, at least {s(progress_source.SHORTEST_S)}",
        f"longest checkpoint, at least {s(progress_source.SHORTEST_S)}",
        f"hang lasts {s(repeated_hangs.STANDSTILL_S)} longer",
        f"after {s(process.KILL_TIMEOUT_S)}", f"takes {s(stragglers.LOOKS * RUN.lease_s)}",
    ),
    "how-to/keep-the-last-step.md": (f"not end within {s(survivors.UPDATE_S)}",),
    "how-to/logs.md": (
        f"at least every {s(log_files.LONGEST_S)}", f"at most {s(log_files.DRAIN_TIMEOUT_S)}",
        f"less than {kib(disk_space.FULL_BYTES)}", f"at most {run_log.LINES.burst:,g} lines about a run",
    ),
    "how-to/migrate-from-torchrun.md": (
        f"to the server: {s(plan.CLOSE_TIMEOUT_S)}, or",
        f"for {s(LAST_CALL_QUIET_S)}, and {s(LAST_CALL_MOST_S)} at most",
    ),
    "how-to/restart-budgets.md": (
        f"pattern takes {s(rules.CPU_S)} of processor time", f"or {s(rules.MATCHED_WITHIN_S)} on a busy",
    ),
    "how-to/save-before-leaving.md": (f"every {s(cloud_metadata.AGAIN_S)}",),
    "how-to/high-availability.md": (
        f"up to {s(timing.LEADER_HOLD_S)}", f"at most {s(timing.LONGEST_HOLD_S)}",
        f"From {tls_config.EXPIRES_SOON.days} days before",
    ),
    "how-to/tracing.md": (f"at most {traces.MOST_NODES} nodes",),
    "reference/events.md": (
        f"latest {kept_events.EVENTS_KEPT:,} events", f"at most {kept_events.MOST_EVENTS:,} events (`--max-events`)",
        f"at least every {s(events_endpoint.HEARTBEAT_S)}", f"At most {events_endpoint.MOST_STREAMS:,} streams",
        f"Up to {mib(event_file.MOST_WAITING_BYTES)} of lines", f"at most {webhook.MOST_AT_ONCE} events",
        f"within {s(webhook.ANSWER_S)}",
    ),
    "reference/exit-codes.md": (f"at most {idle_shutdown.ENDED_S / 60:g} minutes after every run",),
    "reference/health.md": (f"after {s(health.NO_AGENTS_S)}", f"stalled after {s(health.STALLED_START_S)}"),
    "reference/http-api.md": (f"once in {s(examination.OPERATORS_PAUSE_S)}",),
    "reference/page.md": (f"at most {watch_view.MOST_QUIET} nodes", f"At most {watch.MOST_WATCHERS}"),
    "reference/rdzvctl.md": (
        f"latest {commands.MOST_EVENTS} events", f"# the last {flag_values.LOG_LINES} lines",
        f"and the last {flag_values.LOG_LINES} lines",
        f"at most {flag_values.MOST_LOG_LINES:,} lines and {kib(queries.LOG_BYTES)}",
        f"({s(client.DEFAULT_TIMEOUT_S)})",
        f"reads an answer for {s(client.LAST_BYTE_S)} and up to {client.LARGEST_ANSWER >> 30} GiB",
    ),
    "reference/sizing.md": (
        f"| {config.OTHER_FILES} + one for each agent", f"MB | {config.OTHER_FILES + 1_000:,} |",
        f"MB | {config.OTHER_FILES + 10_000:,} |", f"reserves {config.OTHER_FILES} files",
        f"at least {config.OTHER_FILES} and two for each",
        f"Each agent adds up to {kib(listener.AGENT_BYTES)}, with TLS up to {kib(listener.TLS_AGENT_BYTES)}.",
    ),
}
# fmt: on
"""Fragments of each page, made of the code's limits. Each begins with words, and the page has it once."""


@pytest.mark.parametrize("name", NAMED)
def test_a_page_names_the_limits_of_the_code(name: str) -> None:
    text = " ".join((DOCS / name).read_text().split())
    assert [fragment for fragment in NAMED[name] if fragment[0].isdigit() or text.count(fragment) != 1] == []
    assert [fragment for fragment in NAMED[name] if re.search(re.escape(fragment) + MORE_DIGITS, text)] == []
