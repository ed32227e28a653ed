"""A run that everything happens to: it succeeds, loses no step, and its ledger tells what was done to it."""

import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.plan import plan

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("possible")]

DEEDS = 6
SEEDS = (265, 370)
"""Together they have deeds and nuisances of nearly every kind."""


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_run_bears_it(seed: int, tmp_path: Path) -> None:
    campaign = Campaign(islice(plan(seed), DEEDS), seed)
    try:
        await campaign.run(tmp_path)
    except BaseException:
        print(*campaign.log, f"again: python -m tests.chaos --seed {seed} --deeds {DEEDS}", sep="\n", file=sys.stderr)
        raise
