"""`--topology nvlink`: the NVLink domain from an imitated nvidia-smi, and the ranks' order that follows."""

from pathlib import Path

import pytest

from node_agent import words
from node_agent.cli import nvlink
from node_agent.flags import sort_key
from tests.unit.node_agent.command_lines import plan
from tests.unit.node_agent.features.checks.test_built_in_helper import pretend

UUID, ZEROS = "3e8ab4b5-7c3e-4d2b-9a41-0d8f8c1b6a52", "00000000-0000-0000-0000-000000000000"
SAY = words.plan


def gpu(state: str = "Completed", status: str = "Success", clique: str = "32766", uuid: str = UUID) -> list[str]:
    """Return the part about one GPU of what `nvidia-smi -q` prints."""
    return [
        "GPU 00000000:09:00.0",
        "    Product Name                          : NVIDIA GB200",
        "    Voltage",
        "        Graphics                          : 685.000 mV",
        "    Fabric",
        f"        State                             : {state}",
        f"        Status                            : {status}",
        f"        CliqueId                          : {clique}",
        f"        ClusterUUID                       : {uuid}",
        "        Health",
        "            Bandwidth                     : Full",
        "    Processes                             : None",
    ]


NO_DOMAIN = SAY.no_nvlink_domain(SAY.nvlink_domains([]))
# fmt: off
CASES = {  # what nvidia-smi prints, its exit code, the domain, and the line
    "a rack": (gpu() * 4, 0, f"{UUID}.32766", SAY.nvlink_domain(f"{UUID}.32766")),
    "a single node": (gpu(clique="0", uuid=ZEROS), 0, "", NO_DOMAIN),
    "no NVLink": (gpu("N/A", "N/A", "N/A", "N/A"), 0, "", NO_DOMAIN),
    "not registered yet": (gpu("In Progress"), 0, "", NO_DOMAIN),
    "a fault": (gpu(status="Failure"), 0, "", NO_DOMAIN),
    "several": ([*gpu(), *gpu(clique="7")], 0, "",
                SAY.no_nvlink_domain(SAY.nvlink_domains([f"{UUID}.32766", f"{UUID}.7"]))),
    "an old driver": (["GPU 00000000:09:00.0"], 0, "", NO_DOMAIN),
    "a broken driver": ([], 9, "", SAY.no_nvlink_domain(SAY.nvidia_smi_fails(9))),
}
# fmt: on


@pytest.mark.parametrize(("lines", "code", "domain", "line"), CASES.values(), ids=CASES)
def test_the_nvlink_domain_is_that_of_all_gpus(
    lines: list[str], code: int, domain: str, line: str, tmp_path: Path
) -> None:
    assert nvlink.find(pretend(tmp_path, "nvidia-smi", *lines, code=code)) == (domain, line)


def test_a_driver_that_is_missing_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SAY.nvidia_smi_missing("No such file or directory")
    assert nvlink.find({"PATH": str(tmp_path)}) == ("", SAY.no_nvlink_domain(missing))
    monkeypatch.setattr(nvlink, "WITHIN_S", 0.2)
    hangs = pretend(tmp_path, "nvidia-smi", first="exec sleep 600")
    assert nvlink.find(hangs) == ("", SAY.no_nvlink_domain(SAY.nvidia_smi_hangs(0.2)))


def test_nodes_of_a_domain_are_neighbours_in_the_schedulers_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    job = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}
    keys = []
    for lines in (gpu(), gpu(clique="7"), gpu(uuid=ZEROS)):
        environment = pretend(tmp_path, "nvidia-smi", *lines)
        made = plan("--endpoint", "auto", "--nproc", "1", "--topology", "nvlink", "train.py", **job, **environment)
        assert nvlink.find(environment).line in made.notes
        keys.append(made.config.join.sort_key)
    assert keys == [f"{sort_key(f'{UUID}.32766')}/00000003", f"{sort_key(f'{UUID}.7')}/00000003", "00000003"]
