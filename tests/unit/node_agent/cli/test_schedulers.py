"""`--endpoint auto`: facts from each scheduler's variables, and the variables that workers get."""

import re
from collections.abc import Mapping
from operator import attrgetter

import pytest

from node_agent import words
from node_agent.cli import schedulers
from node_agent.kernel.config import LaunchPlan, Target
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.workers.spec_maker import SpecMaker
from tests.support.message_search import has_message, pattern
from tests.unit.node_agent.command_lines import complaint, plan
from tests.unit.node_agent.story import an_assignment

AUTO = ("--endpoint", "auto")
SAY = words.schedulers


@pytest.fixture(autouse=True)
def names(monkeypatch) -> None:
    """Make every name known to the system, so that no scheduler is asked. A pod has one in a headless Service."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [])
    monkeypatch.setattr("socket.getfqdn", lambda name: f"{name}.svc.ns")


def auto(environment: Mapping[str, str], *flags: str) -> LaunchPlan:
    return plan(*AUTO, *flags, "train.py", **environment)


def refusal(environment: Mapping[str, str], *flags: str) -> str:
    return complaint(*AUTO, *flags, "train.py", environment=environment)


def variables(text: str) -> dict[str, str]:
    """Return an environment from text, as a shell reads it."""
    return dict(word.split("=", 1) for word in text.split())


SLURM = variables(
    "SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=4 SLURM_STEP_NUM_TASKS=4 SLURM_NODEID=2 "
    "SLURM_STEP_NODELIST=gpu[08-10,12] SLURMD_NODENAME=gpu10 SLURM_PROCID=2 SLURM_LOCALID=0 SLURM_NTASKS=4 "
    "SLURM_GTIDS=2 SLURM_TASKS_PER_NODE=1(x4) PMI_RANK=2"
)
KUBEFLOW = variables(
    "PET_NNODES=2:4 PET_NPROC_PER_NODE=8 PET_NODE_RANK=0 PET_MASTER_ADDR=job-node-0-0.job PET_MASTER_PORT=29500 "
    "JOB_COMPLETION_INDEX=0"
)
ELASTIC = variables(
    "PET_NNODES=1:4 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=job-worker-0:23456 HOSTNAME=job-worker-3 "
    "PET_NPROC_PER_NODE=2"
)
SKYPILOT = (
    SLURM
    | variables(
        "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=8 "
        "SKYPILOT_TASK_ID=sky-2026-11-22-08-00-00-000000_c_1"
    )
    | {"SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n"}
)
DSTACK = variables(
    "DSTACK_NODE_RANK=1 DSTACK_NODES_NUM=3 DSTACK_MASTER_NODE_IP=10.0.0.4 DSTACK_GPUS_PER_NODE=0 "
    "DSTACK_RUN_NAME=train-distrib"
)
LWS = variables("LWS_LEADER_ADDRESS=lws-0.lws.default LWS_GROUP_SIZE=4 LWS_WORKER_INDEX=3")
OPEN_MPI = SLURM | variables(
    "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0 MASTER_ADDR=n1 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_NAMESPACE=3236233217 OMPI_MCA_btl=tcp"
)
NODES = variables("RANK=1 WORLD_SIZE=3 MASTER_ADDR=dlc-master-0 MASTER_PORT=23456 NPROC_PER_NODE=8 NODE_RANK=1")
VOLCANO = variables("VC_TASK_INDEX=1 VK_TASK_INDEX=1 VC_WORKER_HOSTS=j-worker-0.j,j-worker-1.j VC_WORKER_NUM=2")
INDEXED = variables("JOB_COMPLETION_INDEX=1 HOSTNAME=nightly-1 PET_NNODES=2")
PMI = variables("PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0 MASTER_ADDR=n1 MASTER_PORT=29400")
OF_SLURM = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"}
AGENTS = {"SLURM_GTIDS", "SLURM_TASKS_PER_NODE", "PMI_RANK"}
ROWS = {
    "Kubeflow": (KUBEFLOW, (2, 4), ("job-node-0-0.job", 29500), "job-node-0-0.job", 8, 0, set(), set()),
    "Kubeflow (elastic)": (ELASTIC, (1, 4), ("job-worker-0", 23456), "job-worker-0:23456", 2, 3, set(), set()),
    "SkyPilot": (SKYPILOT, (2, 2), ("10.0.0.4", None), "sky-2026-11-22-08-00-00-000000_c_1", 8, 1, OF_SLURM, AGENTS),
    "dstack": (DSTACK, (3, 3), ("10.0.0.4", None), "train-distrib", 1, 1, set(), set()),
    "LeaderWorkerSet": (LWS, (4, 4), ("lws-0.lws.default", None), "lws-0.lws.default", 1, 3, set(), set()),
    "Open MPI": (
        OPEN_MPI, (2, 2), ("n1", None), "3236233217", 1, 1, OF_SLURM,
        {*AGENTS, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    ),
    "Slurm": (SLURM, (4, 4), ("gpu08", 27690), "4711.0", 1, 2, OF_SLURM, AGENTS),
    "RANK and WORLD_SIZE of nodes": (
        NODES, (3, 3), ("dlc-master-0", 23456), "dlc-master-0", 8, 1, {"NODE_RANK"}, set(),
    ),
    "Volcano": (VOLCANO, (2, 2), ("j-worker-0.j", None), "j-worker-0.j", 1, 1, set(), set()),
    "Kubernetes Job": (INDEXED, (2, 2), ("nightly-0.svc.ns", None), "nightly", 1, 1, set(), set()),
    "PMI": (
        PMI, (2, 2), ("n1", 29400), "n1", 1, 1, set(),
        {"PMI_RANK", "PMI_SIZE", "PMI_FD", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    ),
}  # fmt: skip
"""Cases by a row's name: the environment of one node. Then the expected number of nodes, place of the server (None for
a port derived from the job), run, workers and node's rank. Then the variables that workers get with a value of their
own, and those that they do not get."""


def test_every_row_has_a_case_here():
    assert [row.name for row in schedulers.SCHEDULERS] == list(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_facts_from_a_schedulers_variables(name):
    environment, nodes, (host, port), run, nproc, rank, corrected, removed = ROWS[name]
    found = auto(environment)
    config, target, (line,) = found.config, found.target, found.notes
    assert (config.join.settings.min_nodes, config.join.settings.max_nodes) == nodes
    assert (target.endpoint[0], target.hosts, target.is_on_a_node) == (host, rank == 0, True)
    assert target.endpoint[1] == port or (port is None and 20_480 <= target.endpoint[1] < 28_672)
    assert (config.join.run_id, config.join.explicit_run_id, config.join.local_world_size) == (run, True, nproc)
    assert config.join.sort_key == f"{rank:08}"
    least, most = nodes
    part = pattern(SAY.node, rank=f"{rank}", least=least, most=most)
    assert re.match(re.escape(SAY.found("--endpoint auto", name, [""])) + part, line)
    assert config.worker_variables.keys() == corrected
    assert config.environment.keys() & environment.keys() == environment.keys() - removed


@pytest.mark.parametrize("name", ROWS)
def test_a_worker_gets_its_own_place_and_not_the_agents(name):
    config = auto(ROWS[name][0], "--nproc=2").config
    assignment = an_assignment(1, group_rank=1, first_rank=2, local_world_size=2, world_size=10)
    given = SpecMaker(config, TempDir()).environments(assignment)[1]
    ranks = {"RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK"}
    sizes = {"WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}
    local = {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}
    nodes = {"GROUP_RANK", "SLURM_NODEID", "NODE_RANK"}
    for names, value in ((ranks, "3"), (sizes, "10"), (local, "1"), (nodes, "1")):
        assert {given[name] for name in names & given.keys()} == {value}


@pytest.mark.parametrize("environment", [row[0] for row in ROWS.values()], ids=ROWS)
def test_without_the_flag_a_schedulers_variables_mean_nothing(environment):
    found = plan("--standalone", "--nnodes=1", "train.py", **environment)
    assert (found.target, found.notes) == (Target(has_id_of_its_own=True), ())
    assert found.config.worker_variables == {}
    assert environment.items() <= found.config.environment.items()


def test_one_line_shows_the_schedulers_variables_and_the_values_derived_from_them():
    (line,) = auto(SLURM | {"SLURM_GPUS_ON_NODE": "8"}, "--nnodes=2:3").notes
    parts = (
        SAY.node("2", 2, 3, "SLURM_NODEID", "--nnodes"),
        SAY.named("gpu10", "SLURMD_NODENAME"),
        SAY.workers(8, "SLURM_GPUS_ON_NODE"),
        SAY.run("4711.0", "SLURM_JOB_ID, SLURM_STEP_ID"),
        SAY.server("gpu08:27690", "SLURM_STEP_NODELIST"),
    )
    assert line == SAY.found("--endpoint auto", "Slurm", parts)


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
    monkeypatch.setattr("node_agent.kernel.transport.this_machine.names_this_machine", lambda host: host == "here")
    assert auto(SLURM, "--master-port=29400").target.endpoint == ("gpu08", 29400)
    for host in ("here", "elsewhere"):
        target = auto(SLURM, f"--master-addr={host}").target
        assert (target.endpoint, target.hosts) == ((host, 27690), host == "here")


def test_flags_of_static_have_no_effect_beside_a_server_elsewhere_or_within():
    one_node = SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"}
    ignored = words.rendezvous.ignored_beside_endpoint(["--master-addr", "--master-port"], "--endpoint")
    for endpoint, environment, notes in (
        ("auto", SLURM, []),
        ("auto@s:1", SLURM, [ignored]),
        ("auto", one_node, [ignored]),
    ):
        found = plan(f"--endpoint={endpoint}", "--master-port=1", "--master-addr=h", "train.py", **environment)
        assert list(found.notes[1:]) == notes


def test_one_node_has_its_server_within():
    found = auto(SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0"})
    assert (found.target, found.config.join.run_id) == (Target(), "4711.0")
    assert found.notes[0].endswith(SAY.SERVER_IN_THIS_AGENT)


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


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"SLURM_STEP_ID": ""}, SAY.NO_STEP),
        ({"SLURM_STEP_ID": "4294967290"}, SAY.NO_STEP),  # salloc's shell
        ({"SLURM_STEP_NUM_TASKS": "16"}, SAY.several_tasks_a_node("16", "4")),
    ],
)
def test_slurm_must_have_started_one_agent_a_node(changed, problem):
    assert refusal(SLURM | changed) == SAY.cannot_start("--endpoint auto", "Slurm", problem)


# Others.


def test_a_job_without_a_headless_service_has_no_name_for_its_first_pod(monkeypatch):
    monkeypatch.setattr("socket.getfqdn", lambda name: name)
    line = refusal(INDEXED)
    assert has_message(line, SAY.no_host, advice=SAY.KUBERNETES_SUBDOMAIN)
    assert plan("--endpoint=auto@s:1", "train.py", **INDEXED).target == Target(("s", 1))


@pytest.mark.parametrize(
    ("environment", "kind", "scheduler", "fields"),
    [
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, SAY.cannot_start, "Open MPI", [SAY.several_agents_a_node(
            "OMPI_COMM_WORLD_LOCAL_SIZE", "8", "mpirun --map-by ppr:1:node -x MASTER_ADDR node-agent ...")]),
        (OPEN_MPI | {"MASTER_ADDR": ""}, SAY.no_host, "Open MPI", [SAY.MASTER_ADDR_OF_OPEN_MPI]),
        (PMI | {"MPI_LOCALNRANKS": "4"}, SAY.cannot_start, "PMI", [SAY.several_agents_a_node(
            "MPI_LOCALNRANKS", "4", "mpiexec -ppn 1 -genv MASTER_ADDR ... node-agent ...")]),
        (VOLCANO | {"VC_MASTER_HOSTS": "j-master-0.j"}, SAY.cannot_start, "Volcano",
         [SAY.no_common_index(["master", "worker"])]),
        (LWS | {"LWS_LEADER_ADDRESS": "lws 0"}, SAY.not_a_host, "LeaderWorkerSet", ["LWS_LEADER_ADDRESS", "lws 0"]),
        (INDEXED | {"PET_NNODES": ""}, SAY.no_nodes, "Kubernetes Job", []),
        (NODES | {"LOCAL_RANK": "0"}, SAY.cannot_start, "RANK and WORLD_SIZE of nodes", [SAY.RANK_OF_A_PROCESS]),
        (ELASTIC | {"HOSTNAME": "laptop"}, SAY.no_rank, "Kubeflow (elastic)", [["HOSTNAME"]]),
    ],
)  # fmt: skip
def test_missing_facts_are_reported(environment, kind, scheduler, fields):
    assert refusal(environment) == kind("--endpoint auto", scheduler, *fields)


# Loopback in a job of several nodes.


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_loopback_as_our_endpoint_is_refused_in_a_job_of_several_nodes(host):
    line = complaint(f"--endpoint={host}:29400", "--nnodes=4", "train.py", environment=SLURM)
    assert line == words.plan.loopback_of_several(
        "--endpoint", f"{host}:29400", host.strip("[]"), nodes=4, variable="SLURM_STEP_NUM_NODES"
    )


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        ("--endpoint=localhost:29400 --nnodes=4", {}),  # several agents on one machine
        ("--endpoint=localhost:29400 --nnodes=1", SLURM),
        ("--endpoint=localhost:29400 --nnodes=4", SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}),
        ("--rdzv-backend=c10d --rdzv-endpoint=localhost:29400 --nnodes=4", SLURM),  # torchrun's flags, on the head node
    ],
)
def test_loopback_is_used_if_it_works(flags, environment):
    assert plan(*flags.split(), "train.py", **environment).target.endpoint == ("localhost", 29400)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_address_of_all_interfaces_is_refused_as_an_endpoint(host):
    line = complaint(f"--endpoint=[{host}]:29400", "--nnodes=2", "train.py")
    assert line == words.rendezvous.every_address("--endpoint", host)


# Refused.


def test_endpoint_auto_without_a_scheduler_is_refused():
    assert refusal({}) == SAY.no_scheduler("--endpoint auto", list(ROWS))


def test_endpoint_auto_refuses_a_backend():
    line = refusal(SLURM, "--rdzv-backend=c10d")
    assert line == SAY.backend_too("--endpoint auto", "--rdzv-backend")


def test_torchruns_own_flag_may_name_a_host_called_auto():
    found = plan("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=auto:1", "train.py", **SLURM)
    assert found.target.endpoint == ("auto", 1)


@pytest.mark.parametrize(
    ("endpoint", "flags", "fixed"),
    [
        ("auto", (), 4),
        ("auto", ("--nnodes", "2:4"), 4),
        ("auto", ("--nnodes", "2:8"), None),
        ("auto", ("--fixed-nodes", "3", "--nnodes", "2:4"), 3),
        ("auto@login:29400", (), None),
    ],
    ids=["all of a job's", "some are spares", "more may come", "given", "jobs that share a server"],
)
def test_a_job_whose_nodes_are_never_replaced_has_a_fixed_number_of_them(endpoint, flags, fixed) -> None:
    made = plan("--endpoint", endpoint, *flags, "train.py", **SLURM)
    assert made.config.join.settings.fixed_nodes == fixed


def test_pods_are_replaced_and_may_be_more_one_day() -> None:
    assert auto(KUBEFLOW).config.join.settings.fixed_nodes is None
