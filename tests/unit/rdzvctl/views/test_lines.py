"""Lines about servers, runs, events and workers."""

import time

import pytest
from rdzv_protocol.words.run import opened

from rdzvctl import output
from rdzvctl import words as ctl
from rdzvctl.answers import Fields
from rdzvctl.views import explanation, lines, tables
from tests.support.scenario import Scenario
from tests.support.stories import check
from tests.unit.rdzvctl.views.reported import SERVER, told


def test_an_event_is_a_line_in_the_words_of_the_log() -> None:
    event = Fields(number=3, run_id="r", attempt=1, round=2, kind="round_opened", reason="node b\x1b was lost")
    assert lines.of_event(event) == ctl.events.event("-", 3, 1, 2, opened("node b  was lost"))
    newer = Fields(event | {"kind": "of_next_year", "attempt": 2, "by": "admin\n", "at": 1_750_000_000.0})
    line = lines.of_event(newer)
    unknown = ctl.events.of_unknown_kind("of_next_year", "node b  was lost", "admin ")
    assert line.endswith(ctl.events.event("", 3, 2, 2, unknown)) and line.isprintable()


def test_the_files_of_a_worker_belong_to_its_round_even_if_the_run_has_another_round() -> None:
    run = Scenario("2", max_restarts=1)
    run.join("a", "b", log_dir="logs")
    run.fails("a")
    run.run.set_apart = "an error"
    place = lines.worker(told(run), 0)
    assert place and place.path == "logs/attempt_0/0"


def test_a_node_that_is_gone_keeps_its_ranks_and_the_place_of_its_files() -> None:
    run = Scenario("3", max_restarts=1)
    run.join("a", "b", log_dir="logs", local_world_size=2)
    run.join("c")
    run.is_lost("b")
    path, known = "logs/attempt_0/1", told(run)
    assert lines.worker(known, 3) is None and len(known["departures"]) == 1
    where, files = lines.gone_worker(known, 3)
    assert (where, files) == (
        ctl.logs.was_on("run", 3, "b", 0.0, known["departures"][0]["cause"]), ctl.logs.in_folder(path)
    )  # fmt: skip
    assert lines.gone_worker(known, 4) == [] and lines.worker(known, 4)
    run.is_lost("c")
    assert lines.gone_worker(told(run), 4)[1] == ctl.logs.ITS_CONSOLE
    older = [Fields({name: each[name] for name in each if name != "had_ranks"}) for each in known["departures"]]
    assert lines.gone_worker(Fields(known | {"departures": older}), 3) == []


@pytest.mark.parametrize(
    ("happens", "rank", "nodes"),
    [
        ("lose b", 1, "b"), ("lose c", 2, "c"), ("lose a; lose b", 1, "ab"), ("lose a; lose c", 0, "a"),
        ("lose b; join a c; 30s", 2, "b"), ("30s", 3, ""),
    ],
)  # fmt: skip
def test_the_nodes_that_are_gone_and_may_have_had_a_rank(happens: str, rank: int, nodes: str) -> None:
    run = told(check(("2:3", f"join a b c; {happens}")))
    assert "".join(gone["node_id"] for gone in lines.may_have_had(run, rank)) == nodes
    assert lines.worker(run, rank) is None


def test_servers_and_the_nodes_that_they_keep_out() -> None:
    cordon = Fields(
        node_id="n\x1b7", by="admin 10.0.0.1", reason="", until=None, drained=False, excluded=False, since=60.0
    )
    server = {"address": "a:1", "version": "1", "ready": True, "unhealthy_reason": None, "leads": True, "leader": None}
    server |= {"shards": [], "uptime_s": 61.0, "cordons": [cordon]}
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(60.0))
    cordoned = ctl.servers.cordon("admin 10.0.0.1", "", "", excluded=False, since=since)
    assert lines.of_servers([server]) == [
        ctl.servers.server("1", "a:1", ctl.servers.READY, "", 61.0), ctl.servers.kept_out("n 7", cordoned)
    ]  # fmt: skip


HOSTILE = "r\x1b[2J\x07\N{RIGHT-TO-LEFT OVERRIDE}[red]x[/]\n"


def test_no_text_of_a_run_moves_the_cursor() -> None:
    run = told(check(("2 max_restarts=1", "join a b; fail a")))
    everything = {**run, "run_id": HOSTILE, "reason": HOSTILE}
    everything["nodes"] = [{**node, "node_id": HOSTILE, "addr": HOSTILE} for node in run["nodes"]]
    everything["missing"] = Fields(more_nodes=1, stopping=[HOSTILE], gone=[HOSTILE], departures=[], more_gone=0)
    shown = (tables.runs_table([everything]), tables.nodes_table(everything), tables.restarts_table(everything))
    for table in shown:
        assert all(cell.isprintable() for row in table.rows for cell in row)
        assert all(line.isprintable() for line in output.aligned(table).splitlines())
    found = explanation.why(everything, SERVER)
    assert found.text.isprintable() and all(step.isprintable() for step in found.next)
    assert lines.of_run(everything).isprintable()
