"""Chaos for a chosen time: `python -m tests.chaos --seed 1 2 3 --minutes 10`."""

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from statistics import median

from tests.chaos import disk
from tests.chaos.campaign import Campaign, Outcome
from tests.chaos.fleet import Setting
from tests.chaos.plan import Step, plan
from tests.hosts import namespaces


def main() -> int:
    """Run the seeds and return the exit code: 0, 1 if the run did not survive something, 2 for bad input."""
    parser = _parser()
    args = parser.parse_args()
    try:
        setting = Setting(**{field.name: getattr(args, field.name) for field in fields(Setting)})
    except ValueError as problem:
        parser.error(str(problem))
    if reason := namespaces.why_impossible() or disk.why_impossible():
        sys.exit(f"tests.chaos: {reason}")
    namespaces.remove_leftovers()
    campaigns = [_carry_out(seed, setting, args) for seed in args.seed]
    outcomes = [outcome for campaign, _ in campaigns for outcome in campaign.outcomes]
    print(*_table(outcomes), sep="\n")
    return int(not all(is_well for _, is_well in campaigns))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seed", type=int, nargs="+", default=[1], metavar="N", help="play one run for each seed (default: 1)"
    )
    parser.add_argument(
        "--minutes", type=float, default=5.0, metavar="M", help="end each run after M minutes (default: %(default)g)"
    )
    parser.add_argument(
        "--actions", type=int, metavar="K", help="end each run after K actions at the latest (default: no limit)"
    )
    parser.add_argument("--etcd", action="store_true", help="keep the server's state in etcd (default: on a disk)")
    parser.add_argument("--tls", action="store_true", help="use TLS and tokens")
    parser.add_argument("--proxy", choices=["nginx", "haproxy"], default="", help="put this proxy before the server")
    parser.add_argument("--names", action="store_true", help="give agents the server's name (default: its address)")
    parser.add_argument("--survivors", action="store_true", help="let workers that survive a round save its last step")
    parser.add_argument("--supervised", action="store_true", help="start agents with --exit-with-run")
    parser.add_argument("--notices", action="store_true", help="let agents give notice before they leave")
    parser.add_argument("--no-restarts", action="store_true", help="allow no restart: no worker fails until the end")
    parser.add_argument(
        "--servers",
        type=int,
        default=1,
        metavar="N",
        help="start N servers over one etcd; needs --etcd and --tls (default: 1)",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="take only actions whose description contains TEXT")
    return parser


def _carry_out(seed: int, setting: Setting, args: argparse.Namespace) -> tuple[Campaign, bool]:
    """Play one run. Return it, and whether all went well."""
    steps = (step for step in plan(seed, setting.parts) if args.only in str(step))
    campaign, is_well = Campaign(_for_minutes(islice(steps, args.actions), args.minutes), seed, setting), True
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
            asyncio.run(campaign.run(Path(folder)))
    except Exception:
        traceback.print_exc()
        print(*campaign.log, sep="\n")
        is_well = False
    restarts = len(campaign.ledger.entries)
    print(
        f"seed {seed}: {len(campaign.outcomes)} actions, {restarts} restarts{'' if is_well else ', FAILED'}", flush=True
    )
    return campaign, is_well


def _for_minutes(steps: Iterable[Step], minutes: float) -> Iterator[Step]:
    until = time.monotonic() + 60 * minutes
    for step in steps:
        yield step
        if time.monotonic() > until:
            return


def _table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield a row for each action: how often it was done and not survived, and how long until all worked again."""
    by_action: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_action[outcome.step.action.name].append(outcome)
    yield f"{'action':<56} {'done':>5} {'failed':>7} {'median':>8} {'longest':>8}"
    for name, done in sorted(by_action.items()):
        took_s = [outcome.took_s for outcome in done]
        failed = sum(not outcome.is_well for outcome in done)
        yield f"{name:<56} {len(done):>5} {failed:>7} {median(took_s):>6.1f} s {max(took_s):>6.1f} s"


if __name__ == "__main__":
    sys.exit(main())
