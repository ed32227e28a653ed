"""Command line: `python -m benchmarks year`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from threading import Thread

from benchmarks import plots
from benchmarks.launchers import torch_is_installed
from benchmarks.machine import machine
from benchmarks.page import Unwritable
from benchmarks.results import note, write_json
from benchmarks.stage import Broken
from benchmarks.year import page, scenarios, training
from benchmarks.year.campaign import Campaign, Score, plan
from benchmarks.year.contenders import OURS, all_contenders
from benchmarks.year.page import PROCESSES, SIMULATION, TRAINING
from benchmarks.year.trace import ATTRIBUTION, DAYS

EPILOG = """examples:
  PAGE=docs/explanation/unattended.md
  python -m benchmarks year --write $PAGE                                 real processes, 15 minutes
  python -m benchmarks year --only simulation --write $PAGE               the year in simulated time, 1.5 hours
  python -m benchmarks year --only training --minutes 60 --write $PAGE    an hour in which nothing hangs
  python -m benchmarks year --minutes 6 --nodes 16 --json year.json       two minutes of faults for each launcher
  python -m benchmarks year --only simulation --nodes 128                 one size

Each part of the page comes from one run. Ctrl-C writes nothing, but prints the results of real processes so far.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Exit codes: 0 if everything was measured, 1 if a measurement failed, 2 for bad input."""
    parser = _parser()
    args = parser.parse_args(argv)
    _check(parser, args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    return {PROCESSES: _processes, SIMULATION: _simulation, TRAINING: _training}[args.only](args)


def _processes(args: argparse.Namespace) -> int:
    here, nodes = machine(os.getloadavg()[0]), args.nodes or 16
    contenders = [each for each in all_contenders() if each.name == OURS or _wants_torchrun(args)]
    minutes = max(0.5, args.minutes / len(contenders) - SET_UP_MINUTES)
    planned = plan(args.seed, minutes)
    note(f"{len(contenders)} launchers, {nodes} nodes and {args.spares} spares, {minutes:.1f} minutes each")
    scores: list[Score] = []
    try:
        for contender in contenders:
            scores.append(Campaign(contender, nodes, args.spares, note).play(planned, minutes))
    finally:
        _show(scores)
        write_json(args.json, machine=here, faults=ATTRIBUTION, results=[score.as_json() for score in scores])
    if args.write:
        about = (
            f"{nodes} nodes and {args.spares} spares, {minutes:.1f} minutes for each launcher, seed {args.seed}. "
            f"Nodes were cut off by {scores[0].cuts}."
        )
        page.write_processes(args.write, scores, here, about)
    return int(any(score.trouble for score in scores))


STOPS = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a simulation."""
SET_UP_MINUTES = 0.8
"""Minutes in which a launcher starts on all nodes, and its speed without faults is measured."""


def _simulation(args: argparse.Namespace) -> int:
    here = machine(os.getloadavg()[0])
    wanted = [
        each
        for each in scenarios.every(args.days_of_10000)
        if args.nodes in (None, each.nodes) and args.scenario in (None, each.about)
    ]
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    Thread(target=_end_when_told, daemon=True).start()
    outcomes = scenarios.play_all(wanted, args.processes, note)
    print(f"\n{here}\n{ATTRIBUTION}\n\n{page.outcome_table(outcomes)}\n\n{page.verdict(outcomes)}")
    write_json(args.json, machine=here, faults=ATTRIBUTION, results=[outcome.as_json() for outcome in outcomes])
    if args.write:
        page.write_simulation(args.write, outcomes, here)
    return int(len(outcomes) < len(wanted))


def _end_when_told() -> None:
    """End at once on a signal, and with this process those that play, which are tied to it.

    A handler would run in the main thread, which misses a signal just before it begins to wait.
    """
    number = signal.sigwait(STOPS)
    os.write(2, b"benchmarks: stopped before the end: nothing was written\n")  # print may hold a lock
    os._exit(128 + number)


def _training(args: argparse.Namespace) -> int:
    here = machine(os.getloadavg()[0])
    try:
        watched = training.watch(args.minutes, note)
    except Broken as error:
        note(str(error))
        return 1
    print(f"\n{here}\n\n{page.alarms(watched)}")
    write_json(args.json, machine=here, faults=ATTRIBUTION, results=[watched.as_json()])
    if args.write:
        page.write_training(args.write, watched, here)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks year",
        description="Replays a year of a real cluster's faults: compressed on real processes, or in simulated time.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--only",
        choices=(PROCESSES, SIMULATION, TRAINING),
        default=PROCESSES,
        help="play only this part (default: %(default)s)",
    )
    add(
        "--minutes",
        type=_positive,
        default=15.0,
        metavar="M",
        help="play for M minutes, which the launchers share (default: %(default)g)",
    )
    add(
        "--nodes",
        type=int,
        metavar="N",
        help="start N nodes (default: 16); simulation: play only scenarios of N nodes (default: all)",
    )
    add("--scenario", metavar="TITLE", help="simulation: play only scenarios with this title of the page")
    add("--spares", type=int, default=2, metavar="N", help="start N more nodes, which stand by (default: %(default)s)")
    add(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="choose the faults on real processes by this seed (default: %(default)s)",
    )
    add("--no-torchrun", action="store_true", help="play only node-agent")
    add(
        "--days-of-10000",
        type=_positive,
        default=DAYS,
        metavar="D",
        help="simulate D days of 10,000 nodes; they take most of the time (default: %(default)g)",
    )
    add(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="simulate in N processes (default: one for each CPU)",
    )
    add("--json", metavar="FILE", help="also write all figures to this file")
    add("--write", metavar="PAGE", help="put the result between the marks of this Markdown page")
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with 2 for errors that would otherwise appear only after a quarter of an hour."""
    sizes = {each.nodes for each in scenarios.every(1.0)}
    if args.only == SIMULATION and args.nodes not in (None, *sizes):
        parser.error(f"--nodes with --only simulation: one of {', '.join(map(str, sorted(sizes)))}")
    titles = {each.about for each in scenarios.every(1.0) if args.nodes in (None, each.nodes)}
    if args.only == SIMULATION and args.scenario not in (None, *titles):
        parser.error(f"--scenario: one of {'; '.join(sorted(titles))}")
    if args.only == PROCESSES and args.nodes is not None and args.nodes < 4:
        parser.error("--nodes: at least 4")
    if not args.write:
        return
    if args.only == PROCESSES and not (plots.is_possible() and _wants_torchrun(args)):
        parser.error("--write needs torchrun and matplotlib: pip install '.[torch,bench]'")
    try:
        page.check(args.write)
    except Unwritable as error:
        parser.error(str(error))


def _wants_torchrun(args: argparse.Namespace) -> bool:
    return not args.no_torchrun and torch_is_installed()


def _positive(text: str) -> float:
    try:
        if 0 < (value := float(text)) < 1e6:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"a number above 0, not {text!r}")


def _show(scores: Sequence[Score]) -> None:
    if not scores:
        return
    print(f"\n{'':44}" + "".join(f"{score.name:>22}" for score in scores))
    for what, *figures in page.score_rows(scores):
        print(f"{what:44}" + "".join(f"{figure:>22}" for figure in figures))
