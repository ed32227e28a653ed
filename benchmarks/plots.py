"""Plots of the rows: SVG that is the same for the same figures."""

import importlib.util
import os
import re
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.results import NEVER, Line, Row, figure, lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Any = {
    "svg.hashsalt": "benchmarks",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
"""Style of the plots: text stays text, on white, legible on pages of any colour."""
THEIRS, BEST, OURS, FLOOR = "torchrun", "torchrun at its best", "node-agent", "floor"
COLOURS = {THEIRS: "#d55e00", BEST: "#e69f00", OURS: "#0072b2", FLOOR: "#999999"}
WIDTH_IN, BAR_IN, MARGIN_IN = 8.0, 0.13, 1.0
THICKNESS = 1 / (len(COLOURS) + 1)
LEAST_S = 0.005
LABEL_FACTOR = 1.1
SCALING_IN = (8.0, 4.0)
ROUND, RESTART = "swarm round", "swarm restart"
SWARM = re.compile(rf"({ROUND}|{RESTART}): (\d+) nodes$")


def is_possible() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(folder: str, rows: Sequence[Row]) -> list[str]:
    """Write the plots into the folder, and return their names. An empty plot is left out."""
    from matplotlib import rc_context

    compared = lines(rows)
    with rc_context(STYLE):
        pictures = {"side-by-side.svg": side_by_side(compared), "many-nodes.svg": many_nodes(compared)}
        for name, picture in pictures.items():
            if picture:
                picture.savefig(os.path.join(folder, name), metadata={"Date": None}, bbox_inches="tight")
    return [name for name, picture in pictures.items() if picture]


def side_by_side(compared: Sequence[Line]) -> "Figure | None":
    """Return the plot of seconds of both launchers on a logarithmic scale; None if no row has both."""
    drawn = [line for line in compared if _in_seconds(line.ours) and any(map(_in_seconds, line.torchruns))]
    if not drawn:
        return None
    drawing, axes = _blank((WIDTH_IN, MARGIN_IN + BAR_IN * (len(COLOURS) + 1) * len(drawn)))
    for number, line in enumerate(drawn):
        _group(axes, number, line)
    axes.set_xscale("log")
    axes.set_xlim(left=LEAST_S)
    axes.set_yticks(range(len(drawn)), [line.title for line in drawn])
    axes.invert_yaxis()
    axes.set_xlabel("on a logarithmic scale")
    axes.xaxis.set_major_formatter(lambda seconds, place: figure(seconds, "s"))
    _legend(axes)
    return drawing


def many_nodes(compared: Sequence[Line]) -> "Figure | None":
    """Return the plot of seconds by simulated nodes on logarithmic scales; None without such rows."""
    swarms = [(match[1], int(match[2]), line) for line in compared if (match := SWARM.match(line.title))]
    rounds = [(nodes, line) for name, nodes, line in swarms if name == ROUND]
    restarts = [(nodes, line.ours) for name, nodes, line in swarms if name == RESTART]
    if not rounds:
        return None
    drawing, axes = _blank(SCALING_IN)
    _curve(
        axes,
        [(nodes, line.rows.get(THEIRS)) for nodes, line in rounds],
        "torchrun: a round",
        "s-",
        THEIRS,
    )
    _curve(axes, [(nodes, line.ours) for nodes, line in rounds], "node-agent: a round", "o-", OURS)
    _curve(axes, restarts, "node-agent: a restart", "o:", OURS)
    _curve(axes, [(nodes, line.floor) for nodes, line in rounds], "floor: as many bare connections", "^-", FLOOR)
    axes.plot(*_points([(nodes, line.ours.bar) for nodes, line in rounds if line.ours]), "k_", label="bar")
    axes.set(xscale="log", yscale="log", xlabel="simulated nodes")
    axes.xaxis.set_major_formatter(lambda nodes, place: f"{nodes:,.0f}")
    axes.yaxis.set_major_formatter(lambda seconds, place: figure(seconds, "s"))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return drawing


def _blank(size: tuple[float, float]) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    drawing = Figure(size)
    return drawing, drawing.add_subplot()


def _in_seconds(row: Row | None) -> bool:
    return row is not None and row.unit == "s" and bool(row.samples)


def _group(axes: "Axes", number: int, line: Line) -> None:
    """Draw the bars of one line, one below the other."""
    best = min((row for row in line.torchruns if row.samples), key=lambda row: median(row.samples))
    shown = {THEIRS: line.rows.get(THEIRS), BEST: best, OURS: line.ours, FLOOR: line.floor}
    for place, (name, row) in enumerate(shown.items()):
        if row and row.samples:
            _bar(axes, number + (place - 1.5) * THICKNESS, name, row)


def _bar(axes: "Axes", at: float, name: str, row: Row) -> None:
    """Draw a row's bar; hatched, and as long as the cap, if the event did not happen before it."""
    seconds = _seconds(row)
    hatch = "///" if median(row.samples) == NEVER else None
    axes.barh(at, seconds, THICKNESS, color=COLOURS[name], hatch=hatch, edgecolor="white", linewidth=0)
    if row.bar:
        axes.vlines(row.bar, at - THICKNESS / 2, at + THICKNESS / 2, "black")
    axes.text(max(seconds, row.bar or LEAST_S) * LABEL_FACTOR, at, row.median, va="center", fontsize=7)


def _legend(axes: "Axes") -> None:
    """Draw the legend with all entries, also those that the first line lacks."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    bars = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    handles = [*bars, Line2D([], [], color="black", marker="|", linestyle="", markersize=9, label="bar")]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.35, 1.0), ncols=len(handles), frameon=False)


def _seconds(row: Row) -> float:
    middle = median(row.samples)
    return row.cap or 0.0 if middle == NEVER else middle


def _curve(axes: "Axes", rows: Sequence[tuple[int, Row | None]], label: str, style: str, colour: str) -> None:
    """Draw a curve through the points; `>` above one for an event that did not happen before its cap."""
    there = [(nodes, row) for nodes, row in rows if row and row.samples]
    if not there:
        return
    axes.plot(*_points([(nodes, _seconds(row)) for nodes, row in there]), style, color=COLOURS[colour], label=label)
    for nodes, row in there:
        if median(row.samples) == NEVER:
            axes.annotate(row.median, (nodes, _seconds(row)), (0, 5), textcoords="offset points", ha="center")


def _points(pairs: Sequence[tuple[int, float | None]]) -> tuple[list[int], list[float]]:
    """Return the numbers of nodes in order, and their values, as two lists."""
    ordered = sorted((nodes, value) for nodes, value in pairs if value is not None)
    return [nodes for nodes, _ in ordered], [value for _, value in ordered]
