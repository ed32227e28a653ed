"""`--endpoint auto`: what each scheduler's variables say, and what workers get of them."""

from collections.abc import Mapping
from operator import attrgetter

import pytest

from node_agent.cli import schedulers
from node_agent.config import LaunchPlan, Target
from tests.unit.node_agent.command_lines import complaint, plan

AUTO = ("--endpoint", "auto")


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.fixture(autouse=True)
def names(monkeypatch) -> None:
    """Every name is known to the system: nobody is asked about it."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])


def auto(environment: Mapping[str, str], *flags: str) -> LaunchPlan:
    return plan(*AUTO, *flags, "train.py", **environment)


def refusal(environment: Mapping[str, str], *flags: str) -> str:
    return complaint(*AUTO, *flags, "train.py", environment=environment)


SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODEID": "2", "SLURM_STEP_NODELIST": "gpu[08-10,12]", "SLURMD_NODENAME": "gpu10", "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_GTIDS": "2", "SLURM_TASKS_PER_NODE": "1(x4)", "PMI_RANK": "2",
}  # fmt: skip
ROWS = {
    "Slurm": (
        SLURM,
        {"nnodes": (4, 4), "run_id": "4711.0", "node_id": "gpu10", "nproc": 1, "endpoint": ("gpu08", 27690),
         "hosts": False, "sort_key": "00000002"},
        {"SLURM_PROCID": "RANK", "SLURM_LOCALID": "LOCAL_RANK", "SLURM_NTASKS": "WORLD_SIZE",
         "SLURM_STEP_NUM_TASKS": "WORLD_SIZE",         "SLURM_NODEID": "GROUP_RANK"},
        {"SLURM_GTIDS", "SLURM_TASKS_PER_NODE", "PMI_RANK"},
    ),
}  # fmt: skip
"""By the row's name: the environment of one node, what comes of it, the variables of workers that get the value of
another, and those that workers do not get.
"""


def test_every_row_has_a_case_here():
    assert [row.name for row in schedulers.SCHEDULERS] == list(ROWS)


@pytest.mark.parametrize(("environment", "says", "corrected", "removed"), ROWS.values(), ids=ROWS)
def test_what_a_scheduler_says(environment, says, corrected, removed):
    config, target, _, (line,) = auto(environment)
    found = {
        "nnodes": (config.join.settings.min_nodes, config.join.settings.max_nodes),
        "nproc": config.join.local_world_size,
        "endpoint": target.endpoint,
        "hosts": target.hosts,
        **{name: getattr(config.join, name) for name in ("run_id", "node_id", "sort_key")},
    }
    assert {name: found[name] for name in says} == says
    assert target.is_on_a_node
    assert config.worker_variables == corrected
    assert config.environment.keys() & environment.keys() == environment.keys() - removed
    assert line.startswith(f"--endpoint auto: {next(name for name in ROWS if ROWS[name][0] is environment)}: node ")


@pytest.mark.parametrize("environment", [row[0] for row in ROWS.values()], ids=ROWS)
def test_without_the_flag_a_schedulers_variables_mean_nothing(environment):
    found = plan("--standalone", "train.py", **environment)
    assert (found.target, found.notes) == (Target(has_id_of_its_own=True), ())
    assert found.config.worker_variables == {}
    assert environment.items() <= found.config.environment.items()


def test_one_line_says_which_variables_were_used_and_what_came_of_them():
    (line,) = auto(SLURM | {"SLURM_GPUS_ON_NODE": "8"}, "--nnodes=2:3").notes
    assert line == (
        "--endpoint auto: Slurm: node 2 of 2:3 (SLURM_NODEID, --nnodes), named gpu10 (SLURMD_NODENAME), 8 workers "
        "(SLURM_GPUS_ON_NODE), run 4711.0 (SLURM_JOB_ID, SLURM_STEP_ID), rdzv-server at gpu08:27690 "
        "(SLURM_STEP_NODELIST)"
    )


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("--nnodes=2:3", "settings.max_nodes", 3),
        ("--nproc=5", "local_world_size", 5),
        ("--run-id=nightly", "run_id", "nightly"),
        ("--node-id=n", "node_id", "n"),
        ("--node-rank=1", "preferred_rank", 1),
    ],
)
def test_flags_that_are_given_win(flags, name, value):
    config = auto(SLURM | {"SLURM_GPUS_ON_NODE": "8"}, flags).config
    assert attrgetter(name)(config.join) == value


def test_variables_of_operators_win_too():
    assert auto(SLURM | {"SLURM_GPUS_ON_NODE": "8", "PET_NPROC_PER_NODE": "3"}).config.join.local_world_size == 3


def test_a_program_on_path_may_say_so_for_all_jobs():
    assert plan("train.py", **SLURM, PET_ENDPOINT="auto").target.endpoint == ("gpu08", 27690)


# Where the server is.


def test_the_node_with_rank_0_hosts_it():
    assert auto(SLURM | {"SLURM_NODEID": "0"}).target.hosts


def test_a_server_elsewhere_takes_its_place():
    found = plan("--endpoint=auto@login:29400", "train.py", **SLURM)
    assert found.target == Target(("login", 29400))
    assert (found.config.join.run_id, found.config.join.sort_key) == ("4711.0", "00000002")


def test_flags_of_static_name_another_place(monkeypatch):
    monkeypatch.setattr("node_agent.transport.this_machine.names_this_machine", lambda host: host == "here")
    assert auto(SLURM, "--master-port=29400").target.endpoint == ("gpu08", 29400)
    for host in ("here", "elsewhere"):
        target = auto(SLURM, f"--master-addr={host}").target
        assert (target.endpoint, target.hosts) == ((host, 27690), host == "here")


def test_one_node_has_its_server_within():
    found = auto(SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"})
    assert (found.target, found.config.join.run_id) == (Target(), "4711.0")
    assert found.notes[0].endswith("rdzv-server in this agent")


def test_jobs_and_their_steps_and_restarts_have_ports_and_runs_of_their_own():
    jobs = [SLURM | {"SLURM_JOB_ID": str(job)} for job in range(4711, 4811)]
    parts = [SLURM | {"SLURM_STEP_ID": "1"}, SLURM | {"SLURM_RESTART_COUNT": "1"}]
    ports = [auto(each).target.endpoint[1] for each in (*jobs, *parts)]
    assert len(set(ports)) == len(ports)
    assert all(20_480 <= port < 28_672 for port in ports)
    assert [auto(each).config.join.run_id for each in parts] == ["4711.1", "4711.0.1"]


# Slurm.


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[08-10,12]", "gpu08"),
        ("gpu[3,5],cpu1", "gpu3"),
        ("r[1-2]n[04-07]", "r1n04"),
        ("gpu[1-2].cluster,x", "gpu1.cluster"),
    ],
)
def test_the_first_of_a_node_list(nodelist, first):
    assert auto(SLURM | {"SLURM_STEP_NODELIST": nodelist}).target.endpoint[0] == first


def test_ranks_follow_the_networks_tree_where_slurm_knows_it():
    nodes = ["s0.s2.gpu10", "s0.s2.gpu9", "s0.s10.gpu1"]
    keys = {auto(SLURM | {"SLURM_TOPOLOGY_ADDR": node}).config.join.sort_key: node for node in nodes}
    assert [keys[key] for key in sorted(keys)] == ["s0.s2.gpu9", "s0.s2.gpu10", "s0.s10.gpu1"]


START = "start it as srun --ntasks-per-node=1 node-agent --endpoint auto ..."
NO_STEP = f"--endpoint auto: Slurm: this is a job's script or shell, and not a step on each of its nodes: {START}"


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"SLURM_STEP_ID": ""}, NO_STEP),
        ({"SLURM_STEP_ID": "4294967290"}, NO_STEP),  # salloc's shell
        ({"SLURM_STEP_NUM_TASKS": "16"},
         f"--endpoint auto: Slurm: this step has 16 tasks on 4 nodes, not one on each: {START}"),
    ],
)  # fmt: skip
def test_slurm_must_have_started_one_agent_a_node(changed, line):
    assert refusal(SLURM | changed) == line


# Refused.


def test_no_scheduler():
    assert refusal({}).startswith("--endpoint auto: there are no variables of a scheduler here (known: Slurm")


def test_a_backend_makes_no_sense_beside_it():
    line = refusal(SLURM, "--rdzv-backend=c10d")
    assert line == "--endpoint auto says where the server is: leave --rdzv-backend out"


def test_torchruns_own_flag_may_name_a_host_called_auto():
    found = plan("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=auto:1", "train.py", **SLURM)
    assert found.target.endpoint == ("auto", 1)
