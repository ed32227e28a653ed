"""Tables of runs, of a run's nodes and of its restarts."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rdzv_protocol.text import age, printable

from rdzvctl import words
from rdzvctl.answers import Fields, is_absent
from rdzvctl.views import state


class Table(NamedTuple):
    """Rows of texts below their headings. A cell that is a word in `TONE_OF` may have the colour of its tone."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def runs_table(runs: Iterable[Fields]) -> Table:
    """Return a table with a row for each run: active runs first, and among them troubled ones, then the youngest."""
    return rows_of_runs(state.in_order(runs))


def rows_of_runs(runs: Iterable[Fields]) -> Table:
    """Return a table of runs in this order."""
    headings = ("RUN", "PHASE", "HEALTH", "SINCE", "ROUND", "NODES", "RESTARTS", "REASON")
    return Table(headings, [_run_row(run) for run in runs])


def _run_row(run: Fields) -> tuple[str, ...]:
    return (
        printable(words.runs.named(run["run_id"], run["attempt"])), run["phase"], state.health(run),
        age(state.since_s(run)), str(run["round"]),
        words.runs.node_counts(run["present"], run["standbys"], run["min_nodes"], run["max_nodes"]),
        _restarts(run),
        printable(_wrong(run) or state.reason(run)),
    )  # fmt: skip


def _wrong(run: Fields) -> str:
    """Return what is wrong with the run, without the phase or health at its beginning: the row has both."""
    if state.lacks_nodes(run) and not state.names_lack(run):
        return "; ".join(filter(None, [state.reason(run), state.trouble(run)]))
    return state.trouble(run, names_health=False)


def _restarts(run: Fields) -> str:
    """Return the run's budgets, and the number of restarts that count against none of them."""
    own = run["own_budgets"]
    free = sum(run["restarts"].values()) - run["restarts_used"] - sum(budget["used"] for budget in own.values())
    cell = f"{run['restarts_used']}/{run['max_restarts']}" + (f"+{free}" if free else "")
    spent = [f"{cause} {budget['used']}/{budget['most']}" for cause, budget in own.items() if budget["used"]]
    return ", ".join([cell, *spent])


def nodes_table(run: Fields) -> Table:
    """Return a table of nodes by group rank, then standbys, then participants that are gone from this round."""
    rows = [_node_row(run, node) for node in run["nodes"]]
    rows += [
        (
            printable(gone["node_id"]), "gone", _rank(gone["group_rank"]), _ranks(gone["had_ranks"]), "-", "-",
            printable(words.nodes.gone(gone["cause"], gone["age_s"])),
        )
        for gone in state.gone(run)
    ]  # fmt: skip
    if run["missing"] and (more := run["missing"]["more_gone"]):
        rows.append((words.nodes.more_gone(more), "gone", *"----", words.nodes.NAMELESS))
    return Table(("NODE", "STATE", "GROUP RANK", "RANKS", "HEARD", "ADDRESS", "NOTE"), rows)


def _node_row(run: Fields, node: Fields) -> tuple[str, ...]:
    cordon = node["cordon"]
    shown = "excluded" if node["state"] == "cordoned" and cordon and cordon["excluded"] else node["state"]
    notes = [words.nodes.failures(node["failures"])] if node["failures"] else []
    if (left_s := node["lost_in_s"]) is not None:
        notes.append(words.nodes.lost_within(left_s))
    elif is_absent(node):
        notes.append(words.nodes.RUN_WAITS)
    if node["drain_left_s"] is not None:
        notes.append(words.nodes.drains(node["drain_left_s"]))
    named = f"node {node['node_id']} is "  # the row names the node
    notes += [remark.removeprefix(named) for remark in node["remarks"].values()]
    if cordon:
        notes.append(state.cordon(cordon))
    return (
        printable(node["node_id"]), node["quiet"] or shown, _rank(node["group_rank"]), _ranks(node["ranks"]),
        age(node["lease_age_s"]), printable(node["addr"]), printable("; ".join(notes)),
    )  # fmt: skip


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)


def _ranks(ranks: Sequence[int]) -> str:
    return words.nodes.ranks(*ranks) if ranks else "-"


def restarts_table(run: Fields) -> Table:
    """Return a table of the run's restarts, the latest one first."""
    rows = [
        (str(restart["round"]), age(restart["age_s"]), restart["cause"].replace("_", " "), age(restart["took_s"]),
         "charged" if restart["charged"] else "free", printable(restart["reason"]))
        for restart in reversed(run["history"])
    ]  # fmt: skip
    return Table(("ROUND", "AGO", "CAUSE", "TOOK", "COST", "REASON"), rows)
