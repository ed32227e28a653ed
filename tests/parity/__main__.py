"""The command line: `python -m tests.parity [--only NAME ...]`."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from benchmarks.launchers import Launcher, torch_is_installed
from benchmarks.machine import machine
from tests.parity.findings import Finding, Row, page, told
from tests.parity.run import OURS
from tests.parity.scenarios import DEFECTS, Defect
from tests.parity.stage import Broken, Stage

NAMES = [defect.name for defect in DEFECTS]


def main(argv: Sequence[str] | None = None) -> int:
    """Observe and print. Return 0, 1 if node-agent was wrong or an observation failed, or 2 for bad input."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.write and (args.only or args.quick or args.launcher):
        parser.error("--write takes the whole table from one run: leave --only, --quick and --launcher out")
    if args.launcher != OURS.name and not torch_is_installed():
        parser.error("there is no torchrun beside this interpreter; --launcher node-agent needs none for most")
    signal.signal(signal.SIGTERM, _leave)
    rows: list[Row] = []
    try:
        for defect in DEFECTS:
            if defect.name in (args.only or NAMES) and not (args.quick and defect.is_slow):
                rows.append(Row(defect.name, defect.title, list(_observe(defect, args.launcher, args.repeat))))
    finally:  # also after Ctrl-C: the results so far
        here = machine(os.getloadavg()[2])  # the load of the last 15 minutes, about as long as all scenarios take
        if rows:
            print(f"\n{here}\n", *(row.plain() for row in rows), sep="\n")
        if args.json:
            found = {"machine": here, "defects": [row.as_json() for row in rows]}
            Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    if args.write:
        Path(args.write).write_text(page(rows, here))
    findings = [finding for row in rows for finding in row.findings]
    return int(any(finding.broken or (finding.is_ours and finding.wrong) for finding in findings))


def _observe(defect: Defect, only: str | None, repeat: int | None) -> Iterator[Finding]:
    """Run the scenario under each launcher, and report progress."""
    for launcher in defect.launchers():
        if only in (None, launcher.name.split()[0]):
            finding = Finding(launcher.name)
            for number in range(1, (repeat or defect.repeat) + 1):
                _note(f"{NAMES.index(defect.name) + 1}/{len(NAMES)} {defect.name}: {launcher.name}, run {number} ...")
                _run(defect, launcher, finding)
            yield finding


def _run(defect: Defect, launcher: Launcher, finding: Finding) -> None:
    began_s = time.monotonic()
    try:
        with Stage() as stage:
            finding.runs.append(defect.observe(stage, launcher))
        said = told(finding.runs[-1])
    except Broken as error:
        finding.broken.append(str(error))
        said = f"could not be observed: {error}"
    _note(f"    {time.monotonic() - began_s:.0f} s: {said}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.parity",
        description="Shows what torchrun gets wrong, and what node-agent does instead, on this machine.",
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        choices=NAMES,
        help=f"play only these scenarios (default: all): {', '.join(NAMES)}",
    )
    parser.add_argument("--launcher", choices=("torchrun", OURS.name), help="run only this launcher (default: both)")
    parser.add_argument("--quick", action="store_true", help="skip scenarios in which torchrun takes over 30 s")
    parser.add_argument(
        "--repeat", type=int, metavar="N",
        help="run each scenario N times (default: 1, or more if a defect does not come every time)",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write every observation to this file")
    parser.add_argument("--write", metavar="FILE", help="write the page of the documentation to this file")
    return parser


def _note(text: str) -> None:
    print(f"parity: {text}", file=sys.stderr, flush=True)


def _leave(signum: int, frame: FrameType | None) -> None:
    """Raise, so that every process is ended."""
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
