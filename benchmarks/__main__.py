"""The command line: `python -m benchmarks [NAME ...]`."""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType

from benchmarks import formation, idle, launch, logs, lost_agent, memory, recovery, swarm, warm
from benchmarks.launchers import torch_is_installed
from benchmarks.plan import Plan
from benchmarks.results import Row, table
from benchmarks.stage import Broken

MEASUREMENTS: dict[str, Callable[[Plan], list[Row]]] = {
    "launch": launch.measure,
    "recovery": recovery.measure,
    "warm": warm.measure,
    "lost-agent": lost_agent.measure,
    "memory": memory.measure,
    "idle": idle.measure,
    "logs": logs.measure,
    "round": formation.measure,
    "swarm": swarm.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Exit codes: 0 measured, whatever the figures; 1 something could not be measured."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _leave)
    torchrun = not args.no_torchrun and torch_is_installed()
    if not torchrun and not args.no_torchrun:
        _note("torch is not installed beside this interpreter: torchrun is left out")
    plan = Plan(args.repeat, torchrun, args.with_slow_torchrun)
    rows: list[Row] = []
    try:
        return _measure(args.names or MEASUREMENTS, plan, rows)
    finally:  # also after Ctrl-C: what there is by then
        if rows:
            print(f"\n{_machine()}\n\n{table(rows)}")
        if args.json:
            _write_json(args.json, rows)


def _measure(names: Iterable[str], plan: Plan, rows: list[Row]) -> int:
    """Add to the rows, one measurement after another; one that fails does not stop the next."""
    broken = 0
    for name in names:
        _note(f"{name} ...")
        try:
            rows += MEASUREMENTS[name](plan)
        except Broken as error:
            _note(f"{name} could not be measured: {error}")
            broken = 1
    return broken


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measures node-agent and torchrun side by side on this machine."
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=_name, help=f"{', '.join(MEASUREMENTS)} (default: all)"
    )
    parser.add_argument("--repeat", type=_count, default=10, metavar="N", help="samples at most (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the samples there too")
    parser.add_argument("--no-torchrun", action="store_true", help="measure node-agent alone")
    parser.add_argument(
        "--with-slow-torchrun", action="store_true",
        help=f"torchrun's lost agent too: up to {lost_agent.CAP_S:g} s a sample",
    )  # fmt: skip
    return parser


def _name(text: str) -> str:
    if text in MEASUREMENTS:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(MEASUREMENTS)}")


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"a number from 1, not {text!r}")


def _write_json(path: str, rows: Sequence[Row]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"machine": _machine(), "rows": [row.as_json() for row in rows]}, file, indent=2)
        file.write("\n")


def _machine() -> str:
    """What the figures depend on."""
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return f"{os.cpu_count()} CPUs, load {load}; {platform.platform()}, Python {platform.python_version()}"


def _note(text: str) -> None:
    print(f"benchmarks: {text}", file=sys.stderr)


def _leave(signum: int, frame: FrameType | None) -> None:
    """Unwind, so that every process is ended."""
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
