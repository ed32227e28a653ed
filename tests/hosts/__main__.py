"""The table of docs/explanation/failures.md, measured: `python -m tests.hosts [--runs N] [--write FILE]`."""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest

from tests.hosts.results import Recovery, table

FILES = [
    str(Path(__file__).with_name(f"test_{name}.py")) for name in ("vanishing", "partitions", "bad_links", "addresses")
]
BEGIN, END = "<!-- measured -->\n", "<!-- end -->\n"


class Collector:
    """A pytest plug-in that collects what the tests note, in the order of the tests."""

    def __init__(self) -> None:
        self.recoveries: list[Recovery] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.recoveries += [Recovery(**value) for name, value in report.user_properties if name == "recovery"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests, and print or write the table. Return 0, or pytest's exit code if a test fails."""
    args = _parser().parse_args(argv)
    place = _place(Path(args.write)) if args.write else ("", "")
    collector = Collector()
    for _ in range(args.runs):
        if code := pytest.main([*FILES, "-q", "-p", "no:cacheprovider"], plugins=[collector]):
            return int(code)
    text = f"{_machine(args.runs)}\n\n{table(collector.recoveries)}"
    if args.write:
        Path(args.write).write_text(text.join(place))
    else:
        print(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=3, metavar="N", help="run every test N times (default: %(default)s)"
    )
    parser.add_argument("--write", metavar="FILE", help="replace the table in this file instead of printing it")
    return parser


def _place(file: Path) -> tuple[str, str]:
    """Return the texts before and after the table in this file."""
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"tests.hosts: {file} has no place for the table: {BEGIN.strip()} and {END.strip()}")
    return before + begin, end + after


def _machine(runs: int) -> str:
    how_often = "one run of each" if runs == 1 else f"the median of {runs} runs, and the longest"
    linux = platform.release().partition("-")[0]
    machine = f"{os.cpu_count()} CPUs, Linux {linux}, Python {platform.python_version()}"
    return f"{date.today()}: {machine}; {how_often}."


if __name__ == "__main__":
    sys.exit(main())
