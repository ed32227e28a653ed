"""docs/how-to/secure-a-server.md and the threat model: the commands work, and the tables have the real limits."""

import re
import subprocess
from pathlib import Path

from rdzv_protocol.constraints import MAX_MESSAGE_BYTES
from rdzv_protocol.visible import MOST_MARKS

from rdzv_server.config import MOST_CONNECTIONS, OTHER_FILES, Limits
from rdzv_server.core.kernel.admission import MOST_AGENTS, MOST_GRACE_S
from rdzv_server.core.kernel.event_sizes import BLOCK_BYTES
from rdzv_server.core.kernel.run import MOST_DEPARTED
from rdzv_server.core.nodes.cordons import MOST_CORDONS, MOST_EXCLUSIONS, MOST_OF_RUN
from rdzv_server.core.runs import registry
from rdzv_server.core.runs.kept_events import EVENTS_KEPT, MEAN_BYTES, MOST_EVENTS
from rdzv_server.core.runs.registry import MOST_RUNS
from rdzv_server.http.connection import MOST_DROPPED, READ_BYTES
from rdzv_server.http.connection_limits import MOST_HELD_BYTES
from rdzv_server.http.listener import MOST_HANDSHAKES
from rdzv_server.http.page import MOST_LOGIN_BYTES
from rdzv_server.http.request_handler import LINGER_S, MOST_HEAD_BYTES
from rdzv_server.service.fair_scheduler import TURNS_AN_AGENT, UNAUTHENTICATED_PER_TURN
from rdzv_server.token_buckets import Rate
from rdzv_server.words import auth
from tests.load.test_strangers import DOORS, WAITS_S
from tests.support.cluster import Cluster
from tests.support.message_search import has_message

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/secure-a-server.md").read_text()
THREATS = (DOCS / "explanation/threat-model.md").read_text()


def carry_out_commands(folder: Path) -> None:
    """Run every shell script of the page."""
    for script in re.findall(r"^```sh\n(.+?)^```", PAGE, re.DOTALL | re.MULTILINE):
        subprocess.run(["bash", "-euc", script], check=True, cwd=folder, capture_output=True, timeout=60)


async def test_a_run_works_with_the_files_that_the_page_makes(cluster: Cluster, tmp_path: Path) -> None:
    carry_out_commands(tmp_path)
    own = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem")
    tokens = ("--token-file", "agents.token", "--read-token-file", "readers.token", "--admin-token-file")
    node = ("--tls-ca", "ca.pem", "--tls-cert", "node.pem", "--tls-key", "node.key", "--token-file", "agents.token")
    server = await cluster.serve(*in_folder(tmp_path, (*own, *tokens, "admins.token")))
    for host in ("localhost", "127.0.0.1"):
        await cluster.node("a", "--endpoint", f"{host}:{server.port}", *in_folder(tmp_path, node))
        await cluster.finish(await cluster.hub.group(2))
    assert not has_message(server.err, auth.exposed)


def in_folder(folder: Path, flags: tuple[str, ...]) -> list[str]:
    return [flag if flag.startswith("--") else str(folder / flag) for flag in flags]


def test_the_table_has_the_limits_that_there_are() -> None:
    limits = Limits()
    for row in (
        f" the limit of open files minus {OTHER_FILES}, at most {MOST_CONNECTIONS:,} |",
        f"| TLS handshake | {limits.handshake_s:g} s to the first byte, {limits.handshake_s:g} s for the rest |",
        f"| a request, to the last byte of its body | {limits.request_s:g} s |",
        f"| an answer that the client does not read | {limits.unread_s:g} s |",
        f"| between two requests | {limits.idle_s:g} s |",
        f"| requests of one peer | {in_words(limits.requests)} |",
        f"| refused tokens of one peer | {in_words(limits.refusals)} |",
        f"| runs with series of their own in `/metrics` | `--metrics-per-run`: {limits.listed_runs} |",
        f"| runs, also ended ones | `--max-runs`: {MOST_RUNS:,} |",
        f"| agents of all runs | `--max-agents`: {registry.MOST_AGENTS:,} |",
        f"| combining marks in a row, in a name or a text | {MOST_MARKS} |",
        f"| events of all runs | `--max-events`: {MOST_EVENTS:,} |",
        f"| {MEAN_BYTES} bytes for each of `--max-events`, {MOST_EVENTS * MEAN_BYTES >> 20} MiB, "
        f"and {BLOCK_BYTES >> 10} KiB a run |",
        f"| ids of agents that are gone | {MOST_DEPARTED:,} of a run, `--max-agents` of all runs |",
        f"| events of an attempt | the latest {EVENTS_KEPT:,}, ",
        f"| agents of a run | {MOST_AGENTS:,} |",
        f"| `--disconnect-grace` of a new run | {MOST_GRACE_S:,.0f} s |",
        f"| cordons | {MOST_CORDONS:,}, of which the server's exclusions take at most {MOST_EXCLUSIONS}; "
        f"of a run's own, {MOST_OF_RUN} |",
    ):
        assert row in PAGE


def test_the_table_of_doors_has_the_bounds_that_there_are() -> None:
    limits = Limits()
    table = THREATS[THREATS.index("## What a stranger can cost") : THREATS.index("## Who could do what")]
    for figure in (
        f"at most {UNAUTHENTICATED_PER_TURN} in a row ({TURNS_AN_AGENT} more for each agent that joins)",
        f"for {limits.request_s:g} s (TLS: {limits.handshake_s:g} s)",
        f"{MOST_HANDSHAKES // 2} at a time",
        f"| {MOST_HEAD_BYTES >> 10} KiB for {limits.request_s:g} s | {MOST_HELD_BYTES >> 21} MiB, ",
        f"| {MAX_MESSAGE_BYTES >> 10} KiB for {limits.request_s:g} s |",
        f"up to {MOST_DROPPED >> 20} MiB is read and dropped within {LINGER_S:g} s, ",
        f"a turn for each {READ_BYTES >> 10} KiB |",
        f"at most {READ_BYTES >> 10} KiB are read at a time",
        f"| the answer, for {limits.unread_s:g} s |",
        f"10 kB for {limits.idle_s:g} s",
        f"| {limits.refusals.per_s:g} refusals a second |",
        f"| {MOST_LOGIN_BYTES >> 10} KiB and one page |",
        f"at most {1e3 * WAITS_S:g} ms of the server's work",
    ):
        assert figure in table
    rows = {row for row in re.findall(r"^\| (.+?) \|", table, re.MULTILINE) if row != "entry point"}
    assert rows == {door.row for door in DOORS.values()}, "each is measured"


def in_words(rate: Rate) -> str:
    return f"{rate.per_s:,} a second, {rate.burst:,} at once"


WAYS_IN = {
    "agents' paths",
    "operators' paths",
    "preemption notices",
    "the network test",
    "queries",
    "pages",
    "standalone page",
    "hosted server",
    "metrics",
    "an agent's metrics",
    "rules about failures",
    "the webhook",
    "the event log",
    "the scheduler's API",
    "traces",
    "files",
    "rdzvctl",
}


def test_every_row_of_the_threat_model_names_tests() -> None:
    """`tests/unit/docs` checks that tests named on pages exist."""
    table = THREATS[THREATS.index("| way in |") :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip(" *") for cell in line.strip("|").split(" | ")] for line in table]
    assert {row[0] for row in rows} - {""} == WAYS_IN
    assert [row for row in rows if not re.search(r"`test_\w+`", row[-1])] == []
