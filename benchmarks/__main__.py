"""Command line: `python -m benchmarks [NAME ...]`."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType

from benchmarks import (
    coordinator,
    data_order,
    floors,
    formation,
    logs,
    neighbours,
    page,
    plots,
    recoveries,
    rounds,
    shards,
    single_node,
    timers,
)
from benchmarks.launchers import OURS, Plan, torch_is_installed, why_no_etcd
from benchmarks.machine import machine
from benchmarks.results import Row, note, table, write_json

DEFAULTS = Plan(repeat=10)
Measure = Callable[[Plan], list[Row]]
MEASUREMENTS: dict[str, tuple[str, Measure]] = {
    "floors": ("a bare interpreter, a TCP round trip, import torch", floors.measure),
    "launch": ("time from exec to all workers' first line, with 2 and with 8 workers", single_node.measure),
    "memory": ("peak memory of an agent's process", single_node.measure_memory),
    "idle": ("wake-ups of an idle agent", single_node.measure_idle),
    "crowd": ("time from exec of eight agents to all workers' first line", recoveries.CROWD.measure),
    "recovery": ("time from SIGKILL of a worker to all new workers", recoveries.RECOVERY.measure),
    "warm": ("like recovery, with workers that import torch: warm and cold", recoveries.measure_warm),
    "elastic": ("like recovery, with two nodes of up to four", recoveries.ELASTIC.measure),
    "lost-noticed": (
        "time from SIGKILL of a node to the survivor's new workers, if workers notice",
        recoveries.NOTICED.measure,
    ),
    "lost-unnoticed": ("like lost-noticed, if workers do not notice", recoveries.UNNOTICED.measure),
    "silent": ("time from SIGSTOP of a node to the survivor's new workers", recoveries.SILENT.measure),
    "scale-up": ("time from exec of a second node to all new workers", recoveries.SCALE_UP.measure),
    "replacement": ("time from exec of a lost node's replacement to all new workers", recoveries.REPLACEMENT.measure),
    "timers": ("torchrun, in those of the last six in which it waits for 30 s or more", timers.measure),
    "coordinator": (
        "workers that end after SIGKILL of the server, and time until agents are back",
        coordinator.measure,
    ),
    "round": ("time in which the server's core forms a round, without a network", formation.measure),
    "swarm": ("rounds of up to 10,000 simulated nodes at a real server", rounds.measure),
    "neighbours": ("delay of another run's requests by a run of 10,000 nodes", neighbours.measure),
    "watchers": (
        "page of 1,000 nodes, and delay of a run's requests while operators look at 200 others",
        neighbours.measure_watched,
    ),
    "shards": ("rounds of sixteen runs at one server, and at four servers that share them", shards.measure),
    "logs": ("throughput of workers that write as fast as they can", logs.measure),
    "data": ("time of an epoch's shuffled order, beside torch's DistributedSampler", data_order.measure),
}
"""Measurements by their names on the command line, each with a line for the help."""

EPILOG = """All measurements together take a quarter of an hour. A measurement that fails does not stop the next one.
Ctrl-C prints the figures measured so far. `> 60 s` means that the event did not come within 60 s, when the watch ended.

examples:
  python -m benchmarks recovery launch --repeat 3
  python -m benchmarks lost-noticed lost-unnoticed timers --json figures.json
  python -m benchmarks --write docs/explanation/performance.md    what `make bench` does
  python -m benchmarks year --help                    a year of faults, which is a program of its own
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Exit codes: 0 if everything was measured, 1 if a measurement failed, 2 for bad input."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["year"]:
        from benchmarks.year import command

        return command.main(words[1:])
    args = _checked(_parser(), argv)
    here = machine(os.getloadavg()[0])
    rows: list[Row] = []
    try:
        broken = _measure(args.names or MEASUREMENTS, _plan(args), rows)
    finally:  # also after Ctrl-C: print the rows measured so far
        if rows:
            print(f"\n{here}\n\n{table(rows)}")
        write_json(args.json, machine=here, rows=[row.as_json() for row in rows])
    if args.write:
        page.write(args.write, rows, here)
    return int(broken)


def _measure(names: Iterable[str], plan: Plan, rows: list[Row]) -> bool:
    """Add the rows of one measurement after another, and return whether one of them failed.

    A failure does not stop the next measurement.
    """
    broken = False
    for name in names:
        about, measure = MEASUREMENTS[name]
        note(f"{name}: {about} ...")
        began_s = time.monotonic()
        try:
            found = measure(plan)
        except Exception as error:
            found = [Row(measurement=name, subject=OURS, unit="", samples=(), trouble=str(error) or repr(error))]
        rows += found
        broken |= _tell(found, time.monotonic() - began_s)
    return broken


def _tell(found: Iterable[Row], took_s: float) -> bool:
    """Report what could not be measured, and return whether something failed. A program that this machine lacks is no
    failure."""
    broken = [row for row in found if row.trouble and not row.is_absent]
    for row in broken:
        note(f"{row.measurement}, {row.subject}: could not be measured: {row.trouble}")
    note(f"    {took_s:.0f} s")
    return bool(broken)


def _plan(args: argparse.Namespace) -> Plan:
    torchrun = not args.no_torchrun and torch_is_installed()
    if not torchrun and not args.no_torchrun:
        note("torch is not installed beside this interpreter: torchrun is left out")
    return Plan(args.repeat, torchrun, why_no_etcd(), args.nodes)


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, MEASUREMENTS))
    names = "\n".join(f"  {name:{width}}  {about}" for name, (about, _) in MEASUREMENTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measures node-agent and torchrun in turns on this machine.\n\nmeasurements:\n{names}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=_name, help="make only this measurement (default: all)"
    )
    parser.add_argument(
        "--repeat",
        type=_count,
        default=DEFAULTS.repeat,
        metavar="N",
        help="take at most N samples (default: %(default)s)",
    )
    parser.add_argument(
        "--nodes", type=_count, default=DEFAULTS.nodes, metavar="N",
        help="for neighbours and watchers: give the large run N nodes (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="also write the samples to this file")
    parser.add_argument("--no-torchrun", action="store_true", help="measure only node-agent")
    parser.add_argument(
        "--write", metavar="PAGE",
        help="put the table and the plots between the marks of this Markdown page; needs all measurements of one run",
    )  # fmt: skip
    return parser


def _checked(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments, checked for errors that would otherwise appear only after a quarter of an hour.

    Exits with 2 if they are wrong.
    """
    args = parser.parse_args(argv)
    if not args.write:
        return args
    if args.names or args.no_torchrun or args.nodes != DEFAULTS.nodes:
        parser.error("--write needs all measurements of one run: leave out names, --no-torchrun and --nodes")
    if not (plots.is_possible() and torch_is_installed()):
        parser.error("--write needs torch and matplotlib: pip install '.[torch,bench]'")
    try:
        page.check(args.write)
    except page.Unwritable as error:
        parser.error(str(error))
    return args


def _name(text: str) -> str:
    if text in MEASUREMENTS:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(MEASUREMENTS)}")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"a number from 1, not {text!r}")


def _leave(signum: int, frame: FrameType | None) -> None:
    """Raise `SystemExit`, so that all processes are ended."""
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
