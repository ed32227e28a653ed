"""Evidence: each row of the table in docs/explanation/failures.md is played, and none is missing.

A row is identified by its beginning. If it needs more than one run, its agents and the time, the name of its test is
given.
"""

import importlib
import re
from pathlib import Path

import pytest

from rdzv_server.core.kernel.silent_runs import GIVES_PLACE_S, MOST_S
from tests.support.stories import Story, check

PAGE = Path(__file__).parents[5] / "docs" / "explanation" / "failures.md"
TEN_S, ONE_S = "lease_s=10", "disconnect_grace_s=1"

PLAYED: dict[str, list[Story]] = {
    "a worker has ended, or an agent leaves": [
        (f"2 {TEN_S} max_restarts=3", "join a b; fail a",
         {"stop": "a b"}, "rejoin", {"ledger": "worker_failure!", "faults": "a:failed"}),
        (f"1:2 {TEN_S}", "join a b; leave b", {"stop": "a"}, "join a", {"ledger": "node_left", "faults": ""}),
    ],
    "the server has restarted": [
        (f"1:2 {TEN_S}", "join a b; 8s; restart; 5s; renew a; 4s; renew a", {"start": "a b"},
         "1s", {"stop": "a", "faults": "b:lost"}),
        (f"1:2 {TEN_S} max_restarts=3", "join a b; restart; fail a; join a", {"wait": "a", "agents": "a b"}),
    ],
    "workers fail on a node that has announced that it leaves": [
        ("1:2 max_restarts=0", "join a b; announce b; fail b", {"stop": "a", "drain": "b", "faults": ""},
         "join a", {"ranks": "a", "ledger": "node_left"}),
        ("1:2 max_restarts=0", "join a b; announce b; fail a", {"stage": "failed", "faults": "a:failed"}),
        ("1:2 fatal_exit_codes=(3,)", "join a b; announce b; fail b exit_code=3", {"stage": "failed"}),
    ],
    "no restart is left, and while such a node leaves, workers of other nodes report that they have lost a worker": [
        ("1:2 max_restarts=0", "join a b; announce b; fail a consequence=True; 0.9s", {"start": "a b"},
         "0.1s; join a", {"ranks": "a", "ledger": "node_left", "faults": ""}),
        ("1:2 max_restarts=0", "join a b; fail a consequence=True; 0.9s; announce b; 0.1s", {"drain": "b"},
         "join a", {"ranks": "a", "ledger": "node_left", "faults": ""}),
    ],
    "no restart is left, and workers report that they have lost a worker": [
        (f"1:2 {TEN_S} max_restarts=0", "join a b; 1s; fail a consequence=True; 5s; renew a; 3.9s",
         {"stage": "running"}, "0.1s; renew a; join a", {"ranks": "a", "ledger": "node_lost", "faults": "b:lost"}),
        (f"1:2 {TEN_S} max_restarts=0", "join a b; 1s; fail a consequence=True; renew b; 0.9s", {"stage": "running"},
         "0.1s", {"stage": "failed", "faults": ""}),
        (f"1:2 {TEN_S} max_restarts=0", "join a b; 1s; fail a consequence=True; 3s", {"stage": "running"},
         "renew b", {"stage": "failed"}),
        (f"1:2 {TEN_S} max_restarts=0", "join a b; restart; fail a consequence=True; 3s; renew b; 0.9s; leave b",
         "join a", {"ranks": "a", "ledger": "node_left"}),
        (f"1:2 {TEN_S} max_restarts=0", "join a b; fail a consequence=True; restart_from_snapshot; 3s; renew a b; 0.9s",
         {"stage": "running"}, "0.1s", {"stage": "failed"}),
    ],
    "no restart is left, and workers fail after a restart of the server": [
        (f"1:2 {TEN_S} max_restarts=0", "join a b; restart; fail a; 5s; renew a; 4.9s; renew a", {"stage": "running"},
         "0.1s; join a", {"ranks": "a", "ledger": "node_lost", "faults": "b:lost"}),
        (f"1:2 {TEN_S} {ONE_S} max_restarts=0", "join a b; disconnect b; fail a; restart; 5s; renew a; 4.9s; renew a",
         {"stage": "running"}, "0.1s; join a", {"ranks": "a", "ledger": "node_lost"}),
        (f"1:2 {TEN_S} max_restarts=0", "join a b; restart; fail a; 1s", {"stage": "running"},
         "renew b", {"stage": "failed"}),
    ],
    "a connection closes while the server holds the agent's poll, or has not read or answered it": [
        (f"1:2 {TEN_S} {ONE_S} max_restarts=3", "join a b; disconnect b; 0.9s", {"start": "a b", "faults": ""},
         "fail a; join a", {"ranks": "a", "ledger": "node_lost"}),
    ],
    "an absent agent polls again": [
        (f"2 {TEN_S} {ONE_S}", "join a b; disconnect b; 0.9s; renew b; 9s; renew a b; 9s",
         {"start": "a b", "faults": ""}),
    ],
    "an absent agent does not poll again, and the server later hears another agent": [
        (f"1:2 {TEN_S} {ONE_S}", "join a b; disconnect b; 0.9s", {"start": "a b"},
         "0.1s", {"stop": "a", "faults": "b:lost"}, "join a", {"ledger": "node_lost"}),
    ],
    "the same, but another node": [
        (f"1:3 {TEN_S} {ONE_S}", "join a b c; disconnect b; 0.9s; renew c; disconnect c; 5s; renew a; 4s",
         {"start": "a b c"}, "0.1s; renew a; 0.9s", {"stop": "a", "faults": ""}, "join a", {"ledger": "node_lost"}),
    ],
    "an absent agent does not poll again, but the server has no connection to another agent of the run": [
        (f"1:2 {TEN_S} {ONE_S}", "join a b; restart; renew b; disconnect b; 5s", {"start": "a b", "faults": ""}),
    ],
    "workers fail while an agent is absent whose poll the server held": [
        (f"1:3 {TEN_S} {ONE_S} max_restarts=3", "join a b c; disconnect b; fail a; join a", {"wait": "a"},
         "join c", {"ranks": "a c", "ledger": "node_lost"}),
        (f"1:3 {TEN_S} {ONE_S} max_restarts=3", "join a b c; disconnect b; fail a; join a; renew b; join b c",
         {"ranks": "a b c", "ledger": "worker_failure!"}),
    ],
    "the same, and several nodes vanished together": [
        (f"1:3 {TEN_S} {ONE_S} max_restarts=3",
         "join a b c; disconnect b; disconnect c; fail a consequence=True; join a", {"wait": "a"},
         "1s", {"ranks": "a", "ledger": "node_lost", "faults": ""}),
        (f"1:3 {TEN_S} {ONE_S} max_restarts=3", "join a b c; disconnect b; disconnect c; fail a; join a; 6s; renew a",
         {"wait": "a"}, "4s", {"ranks": "a", "ledger": "node_lost", "faults": ""}),
    ],
    "no restart is left, and workers fail while such an agent is absent": [
        (f"2 {TEN_S} {ONE_S} max_restarts=0", "join a b; disconnect b; fail a; 0.5s", {"stage": "running"},
         "renew b", {"stage": "failed"}),
        (f"1:2 {TEN_S} {ONE_S} max_restarts=0", "join a b; disconnect b; fail a; 1s; join a",
         {"ranks": "a", "ledger": "node_lost"}),
    ],
    "an agent is silent, and the server hears another one of the run": [
        (f"1:2 {TEN_S}", "join a b; 6s; renew a; 3.9s", {"start": "a b"}, "0.1s", {"faults": "b:lost"},
         "join a", {"ledger": "node_lost"}),
        (f"1:2 {TEN_S}", "join a b; 5s; renew a; 5.1s", {"start": "a b"}, "renew a", {"faults": "b:lost"}),
    ],
    "a leaving agent vanishes or is silent": [
        (f"1:2 {TEN_S}", "join a b; drain b deadline_s=0; join a; 5s; renew a; 5.1s; renew a",
         {"agents": "a", "faults": "", "ledger": "node_drained"}),
        (f"1:2 {TEN_S}", "join a b; drain b deadline_s=0; join a; disconnect b; join b2 node=b", {"faults": ""}),
        (f"1:2 {TEN_S} notice_timeout_s=20", "join a b; announce b; 1s; renew a; disconnect b; 1s",
         {"stop": "a", "faults": ""}),
    ],
    "agents of several nodes of a run fall silent together, and another agent is heard": [
        (f"1:3 {TEN_S}", "join a b c; 6s; renew a; 4s", {"agents": "a", "faults": ""},
         "join a", {"ledger": "node_lost"}),
    ],
    "no agent of a running round is heard, for instance its only one": [
        (f"2 {TEN_S}", f"join a b; suspect a 0; {MOST_S - 20}s", {"start": "a b", "ledger": "", "faults": ""},
         "renew a b", {"kinds warning": "warning warning"}),
        (f"1 {TEN_S} scale_up_window_s=20", "join a; 5s; join b; 3600s", {"start": "a"}),
    ],
    "an agent is heard after such a silence": [
        (f"1:3 {TEN_S}", "join a b c; 60s; renew a; 5s; renew a; 4.9s; renew a", {"start": "a b c", "faults": ""},
         "0.1s", {"agents": "a", "faults": ""}),
    ],
    "a new agent of a silent node joins": [
        (f"1 {TEN_S}", "join a; 60s; join a2 node=a", {"ranks": "a2", "ledger": "node_lost", "faults": ""}),
    ],
    "on other nodes, as many new agents join as the silent round has nodes": [
        (f"2 {TEN_S}", "join a b; 60s; join c", {"start": "a b"},
         "join d", {"ranks": "c d", "ledger": "node_lost", "faults": ""}),
        (f"1 {TEN_S}", "join a; 7s; join b; 2.9s; renew b", {"start": "a"}, "0.1s", {"ranks": "b", "faults": ""}),
    ],
    "the workers of a running round have a [notice]": [
        ("1:2 max_restarts=0", "join a b; announce b; suspect a 0; suspect b 1; 23.9s",
         {"stage": "running", "kinds hang": ""}, "0.1s", {"drain": "b"}),
    ],
    "no agent of a running round is heard for 24 h": [
        (f"2 {TEN_S}", f"join a b; {MOST_S - 1}s", {"stage": "running"}, "1s", {"stage": "failed", "faults": ""}),
    ],
    "no agent of a forming round is heard": [
        (f"2 {TEN_S} join_timeout_s=60", "join a; 9.9s", {"agents": "a"}, "0.1s", {"agents": "", "faults": ""},
         "49.9s", {"stage": "forming"}, "0.1s", {"stage": "failed"}),
    ],
    "another agent joins with the same `--node-id` or `--node-rank`, and the old one is absent": [
        (f"2 {TEN_S}", "join a b; disconnect b; join b2 node=b; join a",
         {"ranks": "a b2", "ledger": "node_lost", "faults": "b:lost"}),
        (f"2 {TEN_S}", "join a node_rank=0; join b node_rank=1; disconnect b; join c node_rank=1; join a node_rank=0",
         {"ranks": "a c", "ledger": "node_lost", "faults": "b:lost"}),
    ],
}  # fmt: skip

GIVES_PLACE = "no agent of a running round is heard for 5 minutes"
KERNEL, SERVICE = "tests.unit.rdzv_server.core.kernel", "tests.unit.rdzv_server.service"
ELSEWHERE = {
    "a connection closes after an answer": (
        f"{SERVICE}.test_agent_connections", "test_a_connection_that_closes_after_an_answer_says_nothing",
    ),
    GIVES_PLACE: (
        f"{KERNEL}.test_silent_runs", "test_the_run_that_has_been_silent_for_longest_gives_its_place_to_a_new_one",
    ),
    "a host is silent, and its lease is longer than 10 s": (
        "tests.hosts.test_vanishing", "test_the_others_continue",
    ),
    "a busy server has not read an agent's message yet": (
        f"{KERNEL}.test_liveness", "test_a_deadline_waits_until_earlier_requests_are_read",
    ),
    "the server's process stood still for T seconds": (
        f"{KERNEL}.test_liveness", "test_time_for_which_the_server_stood_still_does_not_count_for_deadlines",
    ),
    "other programs kept the server from a processor for T of the last 2 s, more than half a second": (
        f"{SERVICE}.test_clock", "test_a_process_that_waits_for_a_processor_is_held_up_for_as_long",
    ),
    "the server did not answer for half of `--lease` or longer, because its store was slow or gone": (
        f"{KERNEL}.test_liveness",
        "test_after_a_long_silence_of_the_server_each_agent_has_a_fresh_lease_and_is_not_absent",
    ),
    "the leader could not reach etcd, and refused all agents for T seconds": (
        f"{SERVICE}.test_clock", "test_a_server_that_was_not_there_has_answered_no_agent_for_any_time",
    ),
    "a connection closes after such a time, before its agent is heard again or within a second": (
        f"{KERNEL}.test_liveness",
        "test_a_close_after_a_long_silence_counts_only_once_its_agent_polls_again",
    ),
    "the store takes some time for every write, less than half of `--lease`": (
        f"{SERVICE}.test_driver_losses", "test_a_stopped_agent_is_lost_after_its_lease_though_each_write_is_slow",
    ),
}  # fmt: skip
"""Rows that a test of another module plays: its module and its name."""
AFTER = {
    "an absent agent does not poll again, and the server later hears another agent": "1 s",
    "an agent is silent, and the server hears another one of the run": "10 s",
    "no agent of a running round is heard for 24 h": f"{MOST_S / 3600:g} h",
    GIVES_PLACE: f"{GIVES_PLACE_S / 60:g} min",
}
"""Times in the stories, as in the table's third column."""


def rows() -> dict[str, list[str]]:
    """Return the rows of the table: the other cells of each, by what the server sees."""
    _, _, rest = PAGE.read_text().partition("| what the server sees |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r" \| | \|$", line.removeprefix("| "))] for line in table]
    return {first: others for first, *others in cells}


def rows_of(beginning: str) -> list[str]:
    return [row for row in rows() if row.startswith(beginning)]


def test_each_row_of_the_table_is_played_once():
    played = [row for beginning in (*PLAYED, *ELSEWHERE) for row in rows_of(beginning)]
    assert sorted(played) == sorted(rows())
    assert len(played) == len(PLAYED) + len(ELSEWHERE)


@pytest.mark.parametrize("row", PLAYED)
def test_the_server_concludes_what_the_table_says(row):
    for story in PLAYED[row]:
        check(story)


@pytest.mark.parametrize("row", ELSEWHERE)
def test_a_row_tested_elsewhere_names_an_existing_test(row):
    module, name = ELSEWHERE[row]
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("row", AFTER)
def test_each_loss_takes_as_long_as_the_table_says(row):
    (whole,) = rows_of(row)
    assert AFTER[row] in rows()[whole][1]
