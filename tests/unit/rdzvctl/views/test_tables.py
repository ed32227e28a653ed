"""Tables of runs and nodes, made from a real server's status."""

import os
import re

import pytest

from rdzv_server.core.policies import words as policy_words
from rdzv_server.core.policies.hangs import words as hang_words
from rdzvctl import output
from rdzvctl import words as ctl
from rdzvctl.answers import Fields
from rdzvctl.views import tables
from tests.support.scenario import HUNG, running
from tests.support.stories import check
from tests.unit.rdzvctl.views.reported import LOOP, told


def test_runs_that_continue_come_first() -> None:
    runs = [told(check(("1", happens))) for happens in ("join a; succeed a", "join a; 5s", "join a; fail a")]
    assert [row[1] for row in tables.runs_table(runs).rows] == ["running", "succeeded", "failed"]


def test_a_run_is_one_row() -> None:
    run = running("2:3", *"abc", max_restarts=3)
    run.join("spare")
    run.is_lost("c")
    run.join("a", "b")
    (row,) = tables.runs_table([told(run)]).rows
    assert row[5:7] == ("3 of 2:3", "0/3+1")


FAILS = "fail a; join a"
HANGS = "suspect a 0; judge; join a"


@pytest.mark.parametrize(
    ("story", "cell"),
    [
        (("1 max_restarts=3", f"join a; {FAILS}; restart_run; join a"), "1/3+1"),
        (("1 max_restarts=1 max_hang_restarts=1", f"join a; {HANGS}; {FAILS}"), "1/1, hang 1/1"),
        (("1 max_restarts=1 max_hang_restarts=1", f"join a; {FAILS}"), "1/1"),
        (("1 max_restarts=2 max_hang_restarts=0", f"join a; {FAILS}"), "1/2"),
        (("1 max_restarts=2 restart_window_s=15", f"join a; {f'{FAILS}; 10s; ' * 4}renew a"), "1/2+3"),
    ],
    ids=["free", "hang", "no hang", "no budget for hangs", "window"],
)
def test_used_restarts_are_those_that_count(story: tuple[str, str], cell: str) -> None:
    run = told(check(story))
    (row,) = tables.runs_table([run]).rows
    assert row[6] == cell
    del run["restarts_used"]
    assert run["restarts_used"] == run["max_restarts"] - run["restarts_left"], "an older server sends only these"


def test_troubled_runs_come_first_and_their_row_says_what_is_wrong() -> None:
    hung, well = check(("1 on_hang=report", "join a; 60s; suspect a 0; judge; 60s")), check(("1", "join a; 5s"))
    looping, small = check(("2 max_restarts=9", f"join a b; {LOOP}")), check(("1:2", "join a; 10s"))
    rows = tables.runs_table([told(run) for run in (small, well, looping, hung)]).rows
    assert [row[2] for row in rows] == ["hung", "looping", "ok", "below size"], "the worst first"
    verdict = hang_words.reported("a", 0, hang_words.hang(HUNG), "", singled_out=True)
    assert rows[0][-1].startswith(f"for 1m2s: {verdict}")


def test_nodes_are_listed_by_rank_then_standbys_then_gone_nodes() -> None:
    run = running("2:3", *"abc")
    run.disconnects("b")
    run.join("spare")
    rows = {row[0]: row for row in tables.nodes_table(told(run)).rows}
    assert [*rows] == ["a", "b", "c", "spare"]
    assert rows["b"][1:4] == ("disconnected", "1", "1") and rows["b"][-1] == ctl.nodes.lost_within(1.0)
    run = running("2:3", *"abc")  # if no other node vanishes with it
    run.join("spare")
    run.is_lost("c")
    rows = {row[0]: row for row in tables.nodes_table(told(run)).rows}
    assert rows["c"][1:4] == ("gone", "2", "2") and rows["c"][4] == "-", "when it was last heard is unknown"
    assert rows["c"][-1].startswith(ctl.nodes.gone("", 0.0).partition(",")[0])


def test_a_silent_node_of_a_run_that_waits_for_it_is_called_silent_as_on_the_page() -> None:
    run = told(check(("2 lease_s=10", "join a b; 42s")))
    assert [(row[1], row[-1]) for row in tables.nodes_table(run).rows] == [("silent", ctl.nodes.RUN_WAITS)] * 2
    for node in run["nodes"]:
        del node["quiet"]  # as an older server
    assert [row[1] for row in tables.nodes_table(run).rows] == ["disconnected"] * 2


def test_a_finishing_run_is_as_old_as_its_last_finished_worker() -> None:
    (row,) = tables.runs_table([told(check(("2", "join a b; 60s; succeed a; 70s")))]).rows
    assert row[1:4] == ("finishing", "ok", "1m10s")


def test_an_excluded_node_reports_the_reason_and_its_leftover_workers() -> None:
    run = told(running("2", *"ab"))
    cordon = Fields(node_id="a", by="admin 10.0.0.1", reason="ECC errors", until=None, drained=True, excluded=False)
    run["nodes"][0] |= {"state": "draining", "cordon": cordon, "drain_left_s": 90.0}
    (row, _) = tables.nodes_table(run).rows
    assert row[1] == "draining"
    cordoned = ctl.servers.cordon("admin 10.0.0.1", "", "ECC errors", excluded=False)
    assert row[-1] == f"{ctl.nodes.drains(90.0)}; {cordoned}"


def test_a_slow_node_is_not_named_twice_for_any_name() -> None:
    run = told(running("2", "a", "b"))
    sentence = policy_words.slow("who is it", True, 1.3, 2.0, 0.65)
    run["nodes"][0] |= {"node_id": "who is it", "remarks": {"slow": sentence}}
    (row, _) = tables.nodes_table(run).rows
    assert row[0] == "who is it" and row[-1].startswith("slow: ") and sentence.endswith(row[-1])


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_table_fits_into_its_terminal(width: int) -> None:
    pytest.importorskip("rich")
    run = told(check(("3", "join a; 10s")))
    drawn = output.by_rich(tables.runs_table([{**run, "run_id": "[bold]x[/] a-long-run-id"}]), width, False)
    assert all(len(line) <= width for line in drawn.splitlines())
    if width == 200:
        assert "[bold]x[/] a-long-run-id" in drawn, "markup of an id is text"


def test_only_a_cell_that_is_a_state_has_its_colour() -> None:
    cells = ("hung", "last restart spent", "failed to start")
    drawn = output.as_records(tables.Table(("RUN", *"123", "REASON"), [("r", *cells, "")]), 80, True)
    assert re.findall(r"\x1b\[(3\d)m([^\x1b]+)", drawn) == [("31", "hung"), ("33", "last restart spent")]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_terminal_is_too_narrow_for_names_and_reasons(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(output.Output, "size", lambda self: os.terminal_size((width, 24)))
    out = output.Output({"TERM": "xterm"})
    out.is_terminal = out.has_colours = True
    run = told(check(("2 max_restarts=9", f"join a b; {LOOP}; leave b; join a; 60s")))
    table = tables.runs_table([run | {"run_id": "night-run-7"}])
    drawn = out.drawn(table)
    out.has_colours = False
    coloured, drawn = drawn, out.drawn(table)
    assert "\x1b[33mrestarting\x1b[0m" in coloured
    assert width == 200 or re.sub(r"\x1b\[\d*m", "", coloured) == drawn
    assert all(len(line) <= width for line in drawn.splitlines())
    assert ("night-run-7" in drawn, "PHASE restarting" in " ".join(drawn.split())) == (True, width < 200)
    shown = "".join(drawn.split()) if width < 200 else drawn
    for word in ("lacks", table.rows[0][-1].split()[-1]):
        assert word in shown


@pytest.mark.parametrize(("short_rows", "is_table"), [(1, False), (30, True)])
def test_a_long_sentence_is_not_folded_into_a_narrow_column_unless_records_are_longer(
    short_rows: int, is_table: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(output.Output, "size", lambda self: os.terminal_size((80, 24)))
    out = output.Output({"TERM": "xterm"})
    out.is_terminal = True
    short = told(check(("1", "join a; 10s")))
    table = tables.runs_table([short] * (1 + short_rows))
    sentence = "worker rank 1 on node a hangs " * 6
    table = table._replace(rows=[(*table.rows[0][:-1], sentence), *table.rows[1:]])
    lines = out.drawn(table).splitlines()
    assert (lines[0].split() == list(table.headings)) == is_table


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200, 300])
@pytest.mark.parametrize("reason", ["short", "a long reason of a run that has failed " * 5], ids=["short", "long"])
def test_a_flat_table_names_each_run_in_one_line(width: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(output.Output, "size", lambda self: os.terminal_size((width, 24)))
    out = output.Output({"TERM": "xterm"})
    out.is_terminal = True
    run = told(check(("2 max_restarts=9", f"join a b; {LOOP}; leave b; join a; 60s")))
    names = ["night-run-7", "b", "a-run-with-a-name-that-is-longer-than-a-column"]
    table = tables.rows_of_runs([run | {"run_id": name} for name in names])
    lines = out.drawn(table._replace(rows=[(*row[:-1], reason) for row in table.rows]), is_flat=True).splitlines()
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines if line.startswith(("night", "b", "a-run"))] == [
        "night-run-7", "b", f"{names[2][: min(width, output.MOST_KEPT) - 1]}…"
    ]  # fmt: skip
    if width >= 120:
        assert lines[0].split() == list(table.headings) and reason[:5] in lines[-1]


def test_columns_of_a_pipe_are_aligned() -> None:
    table = tables.Table(("A", "LONG", "LAST"), [("aaaa", "b", "c d"), ("a", "bbbbb", "")])
    assert output.aligned(table).splitlines() == ["A     LONG   LAST", "aaaa  b      c d", "a     bbbbb"]
