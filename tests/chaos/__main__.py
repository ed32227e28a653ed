"""Chaos for as long as you like: `python -m tests.chaos --seed 1 --minutes 10`."""

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.chaos import disk
from tests.chaos.campaign import Campaign
from tests.chaos.plan import Step, plan
from tests.hosts import namespaces


def main() -> int:
    args = _parser().parse_args()
    if reason := namespaces.why_impossible() or disk.why_impossible():
        sys.exit(f"tests.chaos: {reason}")
    namespaces.remove_leftovers()
    codes = [_carry_out(seed, args) for seed in args.seed]
    return max(codes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], metavar="N")
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M", help="for each seed (default: %(default)g)")
    parser.add_argument("--deeds", type=int, metavar="K", help="end after so many deeds")
    parser.add_argument("--skip", type=int, default=0, metavar="K", help="leave out so many first")
    parser.add_argument("--only", metavar="TEXT", help="only deeds whose description has this text")
    return parser


def _carry_out(seed: int, args: argparse.Namespace) -> int:
    steps = (step for step in plan(seed) if args.only is None or args.only in str(step))
    campaign = Campaign(_for_minutes(islice(steps, args.skip, args.deeds and args.skip + args.deeds), args.minutes))
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            asyncio.run(campaign.run(Path(folder)))
    except Exception:
        traceback.print_exc()
        print(*campaign.log, sep="\n")
        print(f"seed {seed}: FAILED")
        return 1
    print(*campaign.log, sep="\n")
    print(f"seed {seed}: {len(campaign.took)} deeds, {len(campaign.ledger.entries)} restarts")
    return 0


def _for_minutes(steps: Iterator[Step], minutes: float) -> Iterator[Step]:
    until = time.monotonic() + 60 * minutes
    for step in steps:
        yield step
        if time.monotonic() > until:
            return


if __name__ == "__main__":
    sys.exit(main())
