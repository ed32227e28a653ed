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


@pytest.mark.parametrize(
    ("seed", "setting"),
    [
        pytest.param(2081, Setting(etcd=True, tls=True), id="helpers beside agents and workers"),
        pytest.param(370, Setting(), id="the server and its disk"),
    ],
)
async def test_the_run_bears_it(seed: int, setting: Setting, tmp_path: Path) -> None:
    if setting.etcd:
        need_etcd()
    campaign = Campaign(islice(plan(seed, has_disk=not setting.etcd), ACTIONS), seed, setting)
    try:
        await campaign.run(tmp_path)
    except BaseException:
        flags = " --etcd" * setting.etcd + " --tls" * setting.tls
        again = f"again: python -m tests.chaos --seed {seed} --actions {ACTIONS}{flags}"
        print(*campaign.log, again, sep="\n", file=sys.stderr)
        raise
