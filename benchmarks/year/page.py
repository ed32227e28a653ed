"""Page docs/explanation/unattended.md: parts between markers, each from one run, and a plot."""

import os
from collections.abc import Sequence
from typing import Any

from benchmarks import plots
from benchmarks.page import split
from benchmarks.year.campaign import Score
from benchmarks.year.contenders import FAIR, OURS, USUAL
from benchmarks.year.scenarios import BASE, CHECKED, COSTS, NOTICED_AT_ONCE, Outcome, named
from benchmarks.year.trace import ATTRIBUTION
from benchmarks.year.training import Watched

PROCESSES, SIMULATION, TRAINING = "processes", "simulation", "training"
MADE = "<!-- Made by `python -m benchmarks year --write`; what is changed here by hand is lost. -->"
PLOT = "steps.svg"
COLOURS = {OURS: plots.COLOURS[plots.OURS], FAIR: plots.COLOURS[plots.BEST], USUAL: plots.COLOURS[plots.THEIRS]}
DATE: Any = {"Date": None}


def check(path: str) -> None:
    """Raise `Unwritable` now rather than after the measurement."""
    for part in (PROCESSES, SIMULATION, TRAINING):
        split(path, *_markers(part))


def write_processes(path: str, scores: Sequence[Score], machine: str, about: str) -> None:
    """Replace the part about real processes, and draw the plot into the folder of the page's name."""
    folder = os.path.splitext(path)[0]
    os.makedirs(folder, exist_ok=True)
    _draw(os.path.join(folder, PLOT), scores)
    picture = f"![steps by time]({os.path.basename(folder)}/{PLOT})"
    _replace(
        path, PROCESSES, f"{_score_table(scores)}\n\n{about} Measured on {machine}.\n\n{picture}\n\n{_faults(scores)}"
    )


def write_simulation(path: str, outcomes: Sequence[Outcome], machine: str) -> None:
    _replace(
        path, SIMULATION, f"{outcome_table(outcomes)}\n\n{verdict(outcomes)}\n\n{ATTRIBUTION} Computed on {machine}."
    )


def write_training(path: str, watched: Watched, machine: str) -> None:
    _replace(path, TRAINING, f"{alarms(watched)} Measured on {machine}.")


def alarms(watched: Watched) -> str:
    """Return the sentence about the alarms, all of which were wrong."""
    said = "".join(f"\n- {sentence}" for sentence in watched.alarms)
    about = f"{watched.hours:.2f} hours, {watched.steps:,} steps of each worker, with `{watched.flags}`"
    return f"{len(watched.alarms)} wrong alarms in {about}.{said}"


def _markers(part: str) -> tuple[str, str]:
    return f"<!-- year: {part}: begin -->", f"<!-- year: {part}: end -->"


def _replace(path: str, part: str, text: str) -> None:
    begin, end = _markers(part)
    before, after = split(path, begin, end)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n{MADE}\n\n{text}\n{end}{after}")


# Real processes.


def score_rows(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """Return the lines of the table: what is scored, then the figure of each contender."""
    return [
        ("faults injected", *(str(len(score.faults)) for score in scores)),
        ("faults survived before a person was needed", *(str(score.survived) for score in scores)),
        ("times that a person was needed", *(str(score.persons) for score in scores)),
        ("ETTR", *(f"{score.ettr:.0%}" for score in scores)),
        ("recovery, median", *(_seconds(score.recovery(50)) for score in scores)),
        ("recovery, 99th percentile", *(_seconds(score.recovery(99)) for score in scores)),
        ("recoveries", *(str(len(score.recoveries_s)) for score in scores)),
        ("steps taken again", *(str(score.repeated) for score in scores)),
        ("root cause named right", *("{} of {}".format(*score.named) for score in scores)),
    ]


def _score_table(scores: Sequence[Score]) -> str:
    heading = ("", *(score.name for score in scores))
    lines = [heading, ("---", *("---:" for _ in scores)), *score_rows(scores)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    flags = "\n".join(f"- {score.name}: `{score.about}`" for score in scores)
    troubles = "\n".join(
        f"- {score.name} could not be measured to its end: {score.trouble.splitlines()[0]}"
        for score in scores
        if score.trouble
    )
    return f"{text}\n\n{flags}\n{troubles}".rstrip()


def _faults(scores: Sequence[Score]) -> str:
    """Return each planned fault with the time to the first step after it, by contender."""
    titles = {fault.planned_s: fault.title for score in scores for fault in score.faults}
    lines = ["| fault | " + " | ".join(score.name for score in scores) + " |", "| --- |" + " ---: |" * len(scores)]
    for planned_s, title in sorted(titles.items()):
        cells = [_recovery(score, planned_s) for score in scores]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "Seconds from each fault to the first step of the next round; nothing where no worker was at work:\n\n" + (
        "\n".join(lines)
    )


def _recovery(score: Score, planned_s: float) -> str:
    fault = next((fault for fault in score.faults if fault.planned_s == planned_s), None)
    if fault is None:
        return ""
    if not fault.needs_recovery:
        return "no restart"
    return f"{fault.recovered_s - fault.at_s:.1f}" if fault.recovered_s else "never"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _draw(path: str, scores: Sequence[Score]) -> None:
    """Draw the steps that count by time, with the faults as marks and the ideal as a line."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(plots.STYLE):
        drawing = Figure((8.0, 4.0))
        axes = drawing.add_subplot()
        best = max(scores, key=lambda score: score.rate)
        axes.plot([0, best.wall_s], [0, best.wall_s * best.rate], ":", color="#999999", label="without faults")
        for score in scores:
            colour = COLOURS.get(score.name, "black")
            at_s, steps = zip(*([(0.0, 0), *score.progress, (score.wall_s, score.steps)]), strict=True)
            axes.step(at_s, steps, where="post", color=colour, label=score.name)
        axes.set(xlabel="seconds, each of which stands for a minute", ylabel="steps that count")
        axes.legend(frameon=False)
        drawing.savefig(path, metadata=DATE, bbox_inches="tight")


# Simulation.


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    heading = (
        "| nodes | launcher, policy | days | faults in the run | persons | ETTR | formula | difference | goodput |"
    )
    lines = [heading, "| ---: | --- |" + " ---: |" * 7]
    for each in outcomes:
        persons = (
            str(each.persons)
            if each.first_person_day is None
            else f"{each.persons}, first on day {each.first_person_day:.0f}"
        )
        policy = each.about if each.launcher != OURS else f"node-agent, {each.about}"
        difference = 100 * (each.ettr - each.ideal)
        lines.append(
            f"| {each.nodes:,} | {policy} | {each.days:g} | {each.faults_in_run:,} | {persons} | {each.ettr:.2%} "
            f"| {each.ideal:.2%} | {difference:+.2f} | {each.goodput:.2%} |"
        )
    return "\n".join(lines)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Return the sentences about the use of the time, and about the two ideals."""
    sizes = sorted({each.nodes for each in outcomes})
    bases = [each for about in (BASE, CHECKED) for nodes in sizes if (each := named(outcomes, about, nodes))]
    checked = [each for each in bases if each.about == CHECKED]
    lines = [_account(each) for each in bases]
    lines += [f"- {_beside(each, real)}" for each in outcomes if (real := _real(each, outcomes))]
    lines += ["", *_causes(checked)] if checked else []
    start_s, every_s = COSTS.start_s, COSTS.checkpoint_every_s
    costs = f"u = {start_s:g} s, c = {every_s:g} s"
    formula = f"*Formula*: 1 - n r (u + c/2) with {costs}, and the rate r of the faults that hit the run."
    return "\n".join([*lines, "", formula])


def _account(outcome: Outcome) -> str:
    shares = ", ".join(f"{phase} {share:.2%}" for phase, share in sorted(outcome.shares.items(), key=lambda kv: -kv[1]))
    days = f"{outcome.restarts:,} restarts in {outcome.days:g} days"
    return f"- {outcome.nodes:,} nodes with {outcome.about}, {days}: {shares}."


def _real(ideal: Outcome, outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the real outcome for an ideal one in which each fault is noticed at once; None for other outcomes."""
    if ideal.about != NOTICED_AT_ONCE:
        return None
    size = (CHECKED, ideal.nodes, ideal.days)
    return next((each for each in outcomes if (each.about, each.nodes, each.days) == size), None)


def _beside(ideal: Outcome, real: Outcome) -> str:
    return (
        f"{real.nodes:,} nodes, {real.days:g} days, checks: {real.ettr:.2%} beside {ideal.ettr:.2%} had each fault "
        f"been noticed at once ({100 * (real.ettr - ideal.ettr):+.2f} points), and {real.ideal:.2%} by the formula "
        f"({100 * (real.ettr - real.ideal):+.2f})."
    )


def _causes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the table of what the training lost, by cause: points of the ETTR, and restarts."""
    order = sorted({cause for each in outcomes for cause in each.by_cause}, key=lambda at: -_points(outcomes[-1], at))
    lines = [
        "With checks, points of ETTR lost, and restarts, because of:",
        "",
        "| | " + " | ".join(f"{each.nodes:,} nodes" for each in outcomes) + " |",
        "| --- |" + " ---: |" * len(outcomes),
    ]
    for cause in order:
        if any(_points(each, cause) >= 0.005 for each in outcomes):
            cells = (f"{_points(each, cause):.2f} ({each.restarts_by.get(cause, 0):,})" for each in outcomes)
            lines.append(f"| {cause} | {' | '.join(cells)} |")
    return lines


def _points(outcome: Outcome, cause: str) -> float:
    return 100 * outcome.by_cause.get(cause, 0.0)
