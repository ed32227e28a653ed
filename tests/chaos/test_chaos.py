"""A run that everything happens to: it succeeds, loses no step, and its ledger tells what was done to it."""

import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.fleet import Setting
from tests.chaos.plan import plan
from tests.support.etcd import need_etcd

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("possible")]

ACTIONS = 6
SEEDS = (2081, 370)
"""One has the helpers beside agents and workers, the other one the server and its disk."""


@pytest.mark.parametrize(
    ("seed", "actions", "setting"),
    [*((seed, ACTIONS, Setting()) for seed in SEEDS), (5, 3, Setting(etcd=True)), (7, 3, Setting(tls=True))],
    ids=str,
)
async def test_the_run_bears_it(seed: int, actions: int, setting: Setting, tmp_path: Path) -> None:
    if setting.etcd:
        need_etcd()
    campaign = Campaign(islice(plan(seed, has_disk=not setting.etcd), actions), seed, setting)
    try:
        await campaign.run(tmp_path)
    except BaseException:
        flags = " --etcd" * setting.etcd + " --tls" * setting.tls
        again = f"again: python -m tests.chaos --seed {seed} --actions {actions}{flags}"
        print(*campaign.log, again, sep="\n", file=sys.stderr)
        raise
