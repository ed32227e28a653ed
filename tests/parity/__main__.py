"""The command line: `python -m tests.parity [--only NAME ...]`."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from benchmarks.machine import machine
from tests.parity.launchers import Launcher, NodeAgent, Torchrun, torch_is_installed
from tests.parity.observation import Broken, Finding, Observation, told
from tests.parity.page import Row, markdown, plain
from tests.parity.scenarios import DEFECTS, Defect
from tests.parity.stage import Stage

NAMES = [defect.name for defect in DEFECTS]
LAUNCHERS = (Torchrun.name, NodeAgent.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Observe and print. Exit codes: 0 done; 1 node-agent was wrong, or something could not be seen; 2 bad input."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.write and (args.only or args.quick or args.launcher):
        parser.error("--write takes the whole table from one run: leave --only, --quick and --launcher out")
    if args.launcher != NodeAgent.name and not torch_is_installed():
        parser.error("there is no torchrun beside this interpreter; --launcher node-agent needs none for most")
    signal.signal(signal.SIGTERM, _leave)
    defects = [d for d in DEFECTS if d.name in (args.only or NAMES) and not (args.quick and d.is_slow)]
    rows: list[Row] = []
    try:
        for defect in defects:
            rows.append(_observe(defect, args.launcher, args.repeat or defect.repeat))
    finally:  # also after Ctrl-C: what there is by then
        if rows:
            print(f"\n{_machine()}\n\n{plain(rows)}")
        if args.json:
            _write(args.json, json.dumps({"machine": _machine(), "defects": [_as_json(row) for row in rows]}, indent=2))
    if args.write:
        _write(args.write, markdown(rows, _machine()))
    found = [finding for _, findings in rows for finding in findings]
    return int(any(finding.broken or (finding.is_ours and finding.wrong) for finding in found))


def _observe(defect: Defect, only: str | None, repeat: int) -> Row:
    findings: list[Finding] = []
    for launcher in defect.launchers():
        if only in (None, launcher.name):
            findings.append(_find(defect, launcher, repeat))
    return defect, findings


def _find(defect: Defect, launcher: Launcher, repeat: int) -> Finding:
    """Run the scenario under the launcher, and say so."""
    runs: list[Observation] = []
    broken: list[str] = []
    began_s = time.monotonic()
    for number in range(repeat):
        name = f"{launcher.name} {launcher.variant}" if launcher.variant else launcher.name
        turn = f" ({number + 1} of {repeat})" if repeat > 1 else ""
        _note(f"{NAMES.index(defect.name) + 1}/{len(NAMES)} {defect.name}: {name}{turn} ...")
        run_began_s = time.monotonic()
        try:
            with Stage() as stage:
                runs.append(defect.observe(stage, launcher))
            said = told(runs[-1])
        except Broken as error:
            broken.append(str(error))
            said = f"could not be observed: {error}"
        _note(f"    {time.monotonic() - run_began_s:.0f} s: {said}")
    return Finding(launcher.name, launcher.variant, launcher.is_ours, runs, broken, took_s=time.monotonic() - began_s)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.parity",
        description="Shows what torchrun gets wrong, and what node-agent does instead, on this machine.",
    )
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=NAMES, help=f"of {', '.join(NAMES)}")
    parser.add_argument("--launcher", choices=LAUNCHERS, help="one side only")
    parser.add_argument("--quick", action="store_true", help="leave out where torchrun takes more than half a minute")
    parser.add_argument(
        "--repeat", type=_count, metavar="N",
        help="runs of each (default: 1, or more where a defect does not come every time)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write every observation there")
    parser.add_argument("--write", metavar="FILE", help="write the page for the documentation there")
    return parser


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"a number from 1, not {text!r}")


def _as_json(row: Row) -> dict[str, Any]:
    defect, findings = row
    return {"name": defect.name, "title": defect.title, "findings": [finding.as_json() for finding in findings]}


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{text.rstrip()}\n")


def _machine() -> str:
    """The load is that of the last quarter of an hour, about as long as all takes."""
    return machine(os.getloadavg()[2])


def _note(text: str) -> None:
    print(f"parity: {text}", file=sys.stderr, flush=True)


def _leave(signum: int, frame: FrameType | None) -> None:
    """Unwind, so that every process is ended."""
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
