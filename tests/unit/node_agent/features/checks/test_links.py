"""The check of network links: a folder as sysfs has it, and real links in a network namespace."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from node_agent.features.checks import NodeChecks, checks, pre_join, words
from node_agent.features.checks.links import SEEN
from node_agent.features.checks.pre_join import PreJoinCheck, built_in
from node_agent.kernel.core.effects import WAITING, Level
from tests.support.programs import Program
from tests.unit.node_agent.features.checks.test_built_in_helper import UNFIT, line_of

classified = words.classified


class Machine:
    """A folder with links, as sysfs shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            (file := self.folder / "class" / path / name).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")

    def ethernet(self, name: str, **changes: object) -> None:
        values: dict[str, object] = {
            "flags": "0x1003", "carrier": 1, "operstate": "up", "speed": 100_000, "type": 1, "carrier_up_count": 1,
            "carrier_down_count": 0, "device/vendor": "0x15b3", "statistics/rx_crc_errors": 0,
        }  # fmt: skip
        self.write(f"net/{name}", values | changes)

    def infiniband(self, device: str, **changes: object) -> None:
        values: dict[str, object] = {
            "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand",
            "counters/link_downed": 0, "counters/symbol_error": 0,
        }  # fmt: skip
        self.write(f"infiniband/{device}", {"hca_type": "MT4129"})
        self.write(f"infiniband/{device}/ports/1", values | changes)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(pre_join, "SYSFS", str(tmp_path / "sys"))
    return Machine(tmp_path / "sys")


@pytest.fixture
def machine(empty: Machine) -> Machine:
    empty.ethernet("eth0")
    for number in range(2):
        empty.infiniband(f"mlx5_{number}")
    return empty


async def checked(check: str) -> tuple[int, str]:
    """Return the exit code and the line of the check."""
    program = await Program.start(*built_in(NodeChecks(check=checks(check))))
    code = await program.exit_code()
    (line,) = program.out
    return code, line


DOWN = {"state": "1: DOWN", "phys_state": "3: Disabled"}
POLLING = {"state": "1: DOWN", "phys_state": "2: Polling"}
NAMES = ["eth0", "mlx5_0/1", "mlx5_1/1"]
# fmt: off
CASES = {  # changes of eth0 and mlx5_1, the check, the verdict, and the finding
    "all are up": ({}, {}, "links", "ok", words.links_up(NAMES)),
    "a cable is out": ({"carrier": 0, "operstate": "down", "carrier_down_count": 1}, {}, "links", "UNFIT",
                       classified(words.link_down("eth0", "down"), "LinkDown")),
    "an interface without a cable": ({"carrier": 0, "operstate": "down", "carrier_up_count": 0}, {}, "links", "ok",
                                     words.links_up(NAMES[1:])),
    "one that is turned off": ({"flags": "0x1002"}, {}, "links", "ok", words.links_up(NAMES[1:])),
    "one that is turned off, and named": ({"flags": "0x1002"}, {}, "links=eth0", "UNFIT",
                                          classified(words.link_down("eth0", "turned off"), "LinkDown")),
    "a port is down": ({}, POLLING | {"counters/link_downed": 1}, "links", "UNFIT",
                       classified(words.link_down("mlx5_1/1", "DOWN, Polling"), "LinkDown")),
    "a port without a cable": ({}, POLLING, "links", "ok", words.links_up(NAMES[:2])),
    "a port that is turned off": ({}, DOWN, "links", "ok", words.links_up(NAMES[:2])),
    "a port without a subnet manager": ({}, {"state": "2: INIT"}, "links", "UNFIT",
                                        classified(words.link_down("mlx5_1/1", "INIT, LinkUp"), "LinkDown")),
    "a slow port": ({}, {"rate": "200 Gb/sec (2X NDR)"}, "links", "UNFIT",
                    classified(words.link_slow("mlx5_1/1", 200, 400), "LinkSlow")),
    "fast enough": ({}, {}, "links=eth0:100+mlx5_0:400", "ok", words.links_up(["eth0", "mlx5_0/1"])),
    "too slow for its name": ({"speed": 10_000}, {}, "links=eth0:100", "UNFIT",
                              classified(words.link_slow("eth0", 10, 100), "LinkSlow")),
    "of unknown speed": ({"speed": -1}, {}, "links=eth0:100", "UNFIT",
                         classified(words.link_slow("eth0", None, 100), "LinkSlow")),
    "one that is not there": ({}, {}, "links=mlx5_7", "UNFIT", classified(words.no_link("mlx5_7"), "LinkMissing")),
    "one port": ({}, {}, "links=mlx5_0/1:400", "ok", words.links_up(["mlx5_0/1"])),
}
# fmt: on


@pytest.mark.parametrize(("ethernet", "infiniband", "check", "verdict", "finding"), CASES.values(), ids=CASES)
async def test_links(
    machine: Machine,
    ethernet: dict[str, object],
    infiniband: dict[str, object],
    check: str,
    verdict: str,
    finding: str,
) -> None:
    machine.ethernet("eth0", **ethernet)
    machine.infiniband("mlx5_1", **infiniband)
    found = await checked(check)
    assert found == (UNFIT if verdict == "UNFIT" else 0, line_of("links", verdict, finding))


async def test_a_machine_without_links_says_nothing(empty: Machine) -> None:
    assert await checked("links") == (0, line_of("links", "unknown", words.NO_LINKS))


class Agent:
    """The checks of one agent, with its lines."""

    def __init__(self, check: str) -> None:
        self.lines: list[str] = []
        made = NodeChecks(check=checks(check))
        self._check = PreJoinCheck(made, "a", dict(os.environ), self._log)

    async def looks(self) -> str:
        async with asyncio.timeout(30):
            return await self._check.unfit(after_failure=True)

    def _log(self, text: str, level: Level, event: str) -> None:
        if event != WAITING:
            self.lines.append(text)


CHANGES = {  # of mlx5_1 between two looks, and what is said about it
    "nothing": ({}, ""),
    "a few errors": ({"counters/symbol_error": 10}, ""),
    "errors": ({"counters/symbol_error": 11}, classified(words.link_errors("mlx5_1/1", 11), "LinkErrors")),
    "it was down": ({"counters/link_downed": 2}, classified(words.link_flapped("mlx5_1/1", 2), "LinkFlapped")),
}


@pytest.mark.parametrize(("changes", "finding"), CHANGES.values(), ids=CHANGES)
async def test_link_errors_since_the_last_check_are_logged_and_the_node_stays(
    machine: Machine, changes: dict[str, object], finding: str
) -> None:
    agent = Agent("links")
    assert (await agent.looks(), agent.lines) == ("", [])
    machine.infiniband("mlx5_1", **changes)
    assert await agent.looks() == ""
    assert agent.lines == ([words.suspect("--check links", f"links: {finding}")] if finding else [])
    assert await agent.looks() == ""
    assert len(agent.lines) == bool(finding), "it compares with the last look, not with the first"


async def test_a_brief_look_writes_what_the_next_one_compares(machine: Machine) -> None:
    program = await Program.start(*built_in(NodeChecks(check=checks("links")), is_brief=True))
    assert await program.exit_code() == 0
    (line,) = program.out
    assert json.loads(line.removeprefix(SEEN)) == {name: [0, 0] for name in NAMES}


REAL = """
mount -t sysfs sysfs /sys && ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up || exit 9
while [ "$(cat /sys/class/net/v0/operstate)" != up ]; do :; done
"$@"; echo $?; ip link set v1 down; "$@"; echo $?; ip link del v0; "$@"; echo $?
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
async def test_a_real_link_that_is_put_down() -> None:
    check = built_in(NodeChecks(check=checks("links=v0")))
    program = await Program.start("unshare", "--net", "--mount", "sh", "-c", REAL, "sh", *check)
    assert await program.exit_code() == 0
    assert program.out == [
        line_of("links", "ok", words.links_up(["v0"])),
        "0",
        line_of("links", "UNFIT", classified(words.link_down("v0", "lowerlayerdown"), "LinkDown")),
        str(UNFIT),
        line_of("links", "UNFIT", classified(words.no_link("v0"), "LinkMissing")),
        str(UNFIT),
    ]
