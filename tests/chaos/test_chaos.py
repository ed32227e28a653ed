"""Everything happens to one run: it succeeds without losing a step, and its ledger shows what was done to it."""

import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.fleet import Setting
from tests.chaos.plan import plan
from tests.support.etcd import need_etcd

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300), pytest.mark.usefixtures("possible")]

ACTIONS = 6


@pytest.mark.parametrize(
    ("seed", "actions", "setting"),
    [
        pytest.param(103, ACTIONS, Setting(), id="helpers beside agents and workers"),
        pytest.param(30, ACTIONS, Setting(), id="the server and its disk"),
        pytest.param(196, 5, Setting(), id="operators"),
        pytest.param(478, 5, Setting(etcd=True, tls=True), id="etcd and TLS"),
        pytest.param(557, 3, Setting(etcd=True), id="etcd and its outages"),
        pytest.param(7, 3, Setting(tls=True), id="TLS"),
        pytest.param(47, 4, Setting(proxy="nginx", names=True), id="nginx and names"),
        pytest.param(84, 3, Setting(proxy="haproxy"), id="haproxy"),
        pytest.param(2001, 3, Setting(survivors=True), id="survivors"),
        pytest.param(5786, 3, Setting(supervised=True), id="supervisors"),
        pytest.param(5243, 2, Setting(notices=True, no_restarts=True), id="evictions without restarts, and a failure"),
        pytest.param(7299, 2, Setting(notices=True), id="notices"),
        pytest.param(8863, 3, Setting(etcd=True, tls=True, servers=2), id="two servers"),
    ],
)
async def test_the_run_survives_the_campaign(seed: int, actions: int, setting: Setting, tmp_path: Path) -> None:
    if setting.etcd:
        need_etcd()
    campaign = Campaign(islice(plan(seed, setting.parts), actions), seed, setting)
    try:
        await campaign.run(tmp_path)
    except BaseException:
        again = f"again: python -m tests.chaos --seed {seed} --actions {actions}{setting.flags}"
        print(*campaign.log, again, sep="\n", file=sys.stderr)
        raise
