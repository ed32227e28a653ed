"""The command line: `python -m benchmarks.gpu [NAME ...] [--write FOLDER]`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

from msgspec.structs import asdict

from benchmarks.gpu.checks import CHECKS, Seen, every, smi
from benchmarks.machine import machine


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 if no check failed, 1 if one did, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Check node-agent on real GPUs.")
    names = "; ".join(CHECKS).replace("%", "%%")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"make only these checks (default: all): {names}")
    parser.add_argument("--write", metavar="FOLDER", help="write gpu.json and gpu.md into this folder")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in CHECKS]:
        parser.error(f"no such check: {'; '.join(unknown)}. The checks are: {'; '.join(CHECKS)}")
    seen = every({name: CHECKS[name] for name in args.names or CHECKS}, _show)
    if args.write:
        _write(args.write, seen)
    return int(any(each.verdict == "failed" for each in seen))


def _show(seen: Seen) -> None:
    figures = "".join(f"\n    {name}: {value:g}" for name, value in seen.figures.items())
    print(f"{seen.verdict:8}{seen.name} ({seen.took_s:g} s): {seen.detail}{figures}", flush=True)


def _write(folder: str, seen: Sequence[Seen]) -> None:
    os.makedirs(folder, exist_ok=True)
    here = machine(os.getloadavg()[0])
    has_gpus = any(each.verdict != "skipped" for each in seen)
    gpus = smi("name", "driver_version", "memory.total") if has_gpus else []
    with open(os.path.join(folder, "gpu.json"), "w", encoding="utf-8") as file:
        json.dump({"machine": here, "gpus": gpus, "checks": [asdict(each) for each in seen]}, file, indent=1)
    with open(os.path.join(folder, "gpu.md"), "w", encoding="utf-8") as file:
        file.write(_markdown(here, seen))


def _markdown(here: str, seen: Sequence[Seen]) -> str:
    rows = [f"| {each.name} | {each.verdict} | {_cell(each)} |" for each in seen]
    return "\n".join([f"Measured on {here}.", "", "| check | verdict | what was seen |", "|---|---|---|", *rows, ""])


def _cell(seen: Seen) -> str:
    figures = "; ".join(f"{name}: {value:g}" for name, value in seen.figures.items())
    first = seen.detail.partition("\n")[0].replace("|", "\\|")
    return f"{first}<br>{figures}" if figures else first


if __name__ == "__main__":
    sys.exit(main())
