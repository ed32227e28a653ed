"""Where the nodes meet, by torchrun's flags and by ours."""

import socket

import pytest

from node_agent.config import Target
from tests.unit.node_agent.command_lines import complaint, plan

ELSEWHERE = "198.51.100.7"
"""An address for documentation: of no machine."""


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def place(*argv: str, **environment: str) -> Target:
    return plan(*argv, "train.py", **environment).target


def refusal(*argv: str) -> str:
    return complaint(*argv, "train.py")


# One node.


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--standalone"],
        ["--nnodes", "1"],
        ["--nnodes=1:1", "--rdzv-backend", "static"],
        ["--standalone", "--rdzv-backend", "c10d", "--rdzv-endpoint", "host:29400"],
    ],
)
def test_one_node_has_its_server_within_and_an_id_of_its_own(flags):
    one, other = plan(*flags, "--run-id", "nightly", "train.py"), plan(*flags, "train.py")
    assert one.target == Target(has_id_of_its_own=True)
    assert one.config.run_id not in (other.config.run_id, "nightly", "none")
    assert (one.config.settings.min_nodes, one.config.settings.max_nodes) == (1, 1)


@pytest.mark.parametrize(
    "flags",
    [
        ["--rdzv-backend", "c10d"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
        ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--nnodes=1"],
    ],
)
def test_c10d_for_one_node_on_a_free_port_has_its_server_within_and_keeps_its_id(flags):
    given = plan(*flags, "--rdzv-id", "100", "train.py")
    assert given.target == Target()
    assert given.config.run_id == "100"


def test_what_standalone_makes_void_is_said_once():
    notes = plan("--standalone", "--endpoint", "host:1", "--rdzv_id", "7", "train.py", PET_RDZV_BACKEND="c10d").notes
    assert notes == ("--standalone: this node alone; --endpoint, --rdzv_id counts for nothing",)


@pytest.mark.parametrize(
    ("flags", "addr", "port"),
    [
        (["--master-port", "{port}"], "127.0.0.1", True),
        (["--master-addr", "10.0.0.7", "--master-port", "{port}"], "10.0.0.7", True),
        (["--master-addr", "10.0.0.7"], "10.0.0.7", False),
        (["--rdzv-backend", "static", "--rdzv-endpoint", "10.0.0.7:{port}"], "10.0.0.7", True),
        (["--master-addr", "[::1]", "--master-port", "{port}"], "::1", True),
    ],
)
def test_the_workers_of_one_node_get_exactly_the_master_that_is_given(flags, addr, port, unused_tcp_port):
    given = plan(*(flag.format(port=unused_tcp_port) for flag in flags), "train.py")
    assert given.target.endpoint is None
    assert given.config.local_addr == addr
    assert given.config.master_port == (unused_tcp_port if port else None)


def test_a_master_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--master-port: cannot reserve {port}" in refusal("--master-port", str(port))
        named = refusal("--rdzv-backend", "static", "--rdzv-endpoint", f"localhost:{port}")
        assert named.startswith(f"--rdzv-endpoint: cannot reserve {port}")


# Static.


@pytest.mark.parametrize("flags", [["--node-rank", "0"], []])
def test_rank_0_hosts_the_server_and_its_address_is_the_master(flags):
    assert place("--nnodes", "2", *flags, "--master-addr", "10.0.0.7", "--master-port", "29501") == Target(
        endpoint=("10.0.0.7", 29501), hosts=True, is_on_a_node=True, node_rank=0, local_addr="10.0.0.7"
    )


def test_the_other_ranks_go_there():
    assert place("--nnodes", "2", "--node_rank=1", "--master_addr=10.0.0.7", "--local-addr", "10.0.0.8") == Target(
        endpoint=("10.0.0.7", 29500), is_on_a_node=True, node_rank=1, local_addr="10.0.0.8"
    )


def test_torchruns_defaults():
    assert place("--nnodes", "2").endpoint == ("127.0.0.1", 29500)


def test_as_kubeflow_sets_it():
    given = {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "job-0.job", "PET_MASTER_PORT": "29500"}
    first, last = plan("train.py", **given, PET_NODE_RANK="0"), plan("train.py", **given, PET_NODE_RANK="3")
    assert (first.target.endpoint, first.target.hosts, first.target.node_rank) == (("job-0.job", 29500), True, 0)
    assert (last.target.endpoint, last.target.hosts, last.target.node_rank) == (("job-0.job", 29500), False, 3)
    assert (last.config.nproc, last.config.settings.max_nodes) == (8, 4)


def test_the_endpoint_stands_for_the_masters_address():
    found = place("--rdzv-backend", "static", "--rdzv-endpoint", "host", "--nnodes", "2")
    assert (found.endpoint, found.local_addr) == (("host", 29500), "host")


def test_is_host_overrules_the_rank():
    assert not place("--nnodes", "2", "--rdzv-conf", "is_host=false").hosts
    assert place("--nnodes", "2", "--node-rank", "1", "--rdzv-conf", "is_host=true").hosts


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], ("no --node-rank: this node takes rank 0, and hosts rdzv-server for the others",)),
        (["--node-rank", "0"], ()),
        (["--node-rank", "1"], ("no --master-addr: looking for the node of rank 0 on this machine, 127.0.0.1",)),
        (["--node-rank", "1", "--master-addr", "host"], ()),
    ],
)
def test_what_is_probably_missing_is_said(flags, said):
    assert plan("--nnodes", "2", *flags, "train.py").notes == said


def test_a_rank_that_the_run_has_not():
    assert refusal("--nnodes", "2", "--node-rank", "2") == "--node-rank 2: with 2 nodes the last one has rank 1"
    assert refusal("--endpoint", "h:1", "--nnodes", "2", "--node-rank", "5").startswith("--node-rank 5: with 2 nodes")


@pytest.mark.parametrize("flags", [[], ["--nnodes=1"], ["--rdzv-backend=c10d"]])
def test_a_rank_of_the_only_node_counts_for_nothing(flags):
    assert plan(*flags, "--node-rank", "1", "train.py").notes == (
        "--node-rank 1 counts for nothing: the run has one node",
    )


@pytest.mark.parametrize(
    "flags",
    [
        ["--standalone", "--nnodes=1:2"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1:2"],
        ["--standalone", "--master_addr=", "--master-port=0"],
        ["--rdzv-backend=c10d", "--master-port=0", "--rdzv-id="],
        ["--master-port=0"],
        ["--rdzv-id="],
    ],
)
def test_what_torchrun_runs_as_one_node_runs_here(flags):
    given = plan(*flags, "train.py")
    assert (given.target.endpoint, given.target.master_port) == (None, None)
    assert (given.config.settings.min_nodes, given.config.settings.max_nodes) == (1, 1)
    assert given.config.run_id


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WORLD_SIZE": "4", "RANK": "0"}, "WORLD_SIZE=4"),
        ({"RANK": "2"}, "RANK=2"),
        ({"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETION_INDEX=1"),
    ],
)
def test_several_nodes_that_stand_in_the_environment_alone_are_warned_of(environment, said):
    (note,) = plan("train.py", **environment).notes
    assert note == f"{said} says that there are several nodes, but without --nnodes this one runs alone"
    for flags in (["--standalone"], ["--nnodes=1"], ["--endpoint=h:1"]):
        assert plan(*flags, "train.py", **environment).notes == ()
    assert plan("train.py", TORCHELASTIC_RUN_ID="x", **environment).notes == ()


def test_a_variable_that_an_operator_sets_is_no_reason_to_refuse():
    assert place(PET_NODE_RANK="1") == Target(has_id_of_its_own=True)


# c10d.


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_the_node_that_the_endpoint_names_hosts_the_server(host):
    found = place("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:29400")
    assert found == Target(endpoint=(host.strip("[]"), 29400), hosts=True, is_on_a_node=True)


def test_the_others_go_there():
    found = place("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ELSEWHERE}:29401")
    assert found == Target(endpoint=(ELSEWHERE, 29401), is_on_a_node=True)


def test_c10ds_default_port():
    for flags in (["--rdzv-endpoint", ELSEWHERE], ["--rdzv-endpoint", f"{ELSEWHERE}:29400"]):
        assert place("--nnodes", "2", "--rdzv-backend", "c10d", *flags).endpoint == (ELSEWHERE, 29400)
    assert place("--nnodes", "2", "--rdzv-backend", "c10d").endpoint == ("localhost", 29400)


def test_is_host_overrules_the_name():
    flags = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-conf"]
    assert not place(*flags, "is_host=no", "--rdzv-endpoint", "localhost:29400").hosts
    assert place(*flags, "is_host=yes", "--rdzv-endpoint", f"{ELSEWHERE}:29400").hosts


def test_a_rank_is_a_wish_where_the_user_wrote_it_and_nothing_where_an_operator_set_it():
    flags = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ELSEWHERE}:29400"]
    assert place(*flags, "--node-rank", "1") == Target(endpoint=(ELSEWHERE, 29400), is_on_a_node=True, preferred_rank=1)
    assert place(*flags, PET_NODE_RANK="1") == Target(endpoint=(ELSEWHERE, 29400), is_on_a_node=True)
    assert place("--endpoint", "host:1", "--node-rank", "1").node_rank == 1


def test_nobody_can_know_a_free_port_of_another_node():
    named = refusal("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    assert named == "--rdzv-endpoint: the other nodes cannot know a free port; name one, not 0"


@pytest.mark.parametrize(
    ("flags", "alone"),
    [
        (["--nnodes=2", "--rdzv-endpoint=localhost:29400"], False),
        (["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400"], False),
        (["--nnodes=2", "--rdzv-backend=c10d"], False),
        (["--nnodes=2", "--master-addr=::1"], False),
        (["--nnodes=2", "--rdzv-backend=c10d", "--endpoint=localhost:29400"], True),
        (["--nnodes=2", "--rdzv-backend=static", "--endpoint=127.1.2.3:29400"], True),
        (["--nnodes=2", "--rdzv-conf=is_host=1", "--endpoint=[::1]:29400"], True),
        (["--nnodes=2", "--rdzv-conf=is_host=1", "--endpoint=127.gpu:29400"], False),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400"], True),
    ],
)
def test_a_server_at_loopback_is_for_nodes_elsewhere_too_where_torchruns_would_be(flags, alone):
    found = place(*flags)
    assert (found.hosts, found.is_for_this_machine) == (True, alone)


# A server that somebody has started.


@pytest.mark.parametrize("backend", [[], ["--rdzv-backend", "rdzv-server"], ["--rdzv-backend", "etcd-v2"]])
def test_an_endpoint_is_where_a_server_runs_and_nobody_hosts_it(backend):
    assert place(*backend, "--endpoint", "localhost:29400") == Target(endpoint=("localhost", 29400))


def test_the_masters_address_counts_for_nothing_there():
    given = plan("--endpoint", "host:29400", "train.py", PET_MASTER_ADDR="x", PET_MASTER_PORT="1", PET_NODE_RANK="2")
    assert given.target == Target(endpoint=("host", 29400))


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_etcds_port(backend):
    assert place("--rdzv-backend", backend, "--rdzv-endpoint", "host").endpoint == ("host", 2379)


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2", "rdzv-server"])
def test_a_server_must_be_somewhere(backend):
    named = refusal("--rdzv-backend", backend)
    assert named == f"--rdzv-backend {backend} needs --endpoint HOST:PORT: where does rdzv-server listen?"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("host:29400", ("host", 29400)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:29400", ("::1", 29400)),
        ("::1:29400", ("::1", 29400)),
        ("http://host:29400", ("host", 29400)),
        ("http://[::1]:29400/", ("::1", 29400)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
    ],
)
def test_an_endpoint(text, where):
    assert place("--endpoint", text).endpoint == where


@pytest.mark.parametrize("text", ["host", "::1", "[::1]", "fe80::1:2940", "http://host", "", "29400"])
def test_an_endpoint_without_a_port_is_explained(text):
    assert "has no port: give HOST:PORT" in refusal("--endpoint", text)


@pytest.mark.parametrize(
    "text", [":29400", "host:", "host:0", "host:65536", "host:http", "host:²", "host:-1", "a b:1", "[]:1", "a/b:1"]
)
def test_an_endpoint_with_a_port_that_is_none_is_explained(text):
    assert "is not HOST:PORT with a port from 1 to 65535" in refusal("--endpoint", text)


@pytest.mark.parametrize("variable", ["PET_RDZV_ENDPOINT", "PET_ENDPOINT"])
def test_torchruns_endpoint_alone_names_the_node_of_rank_0_and_ours_a_server(variable):
    alone = Target(endpoint=("host", 29500), hosts=True, is_on_a_node=True, node_rank=0, local_addr="host")
    assert place("--nnodes", "2", "--rdzv-endpoint", "host:29500") == alone
    ours = variable == "PET_ENDPOINT"
    assert place("--nnodes", "2", **{variable: "host:29500"}) == (Target(endpoint=("host", 29500)) if ours else alone)
    assert place("--nnodes", "2", **{variable: "a:1,b:1"}) == Target(endpoint=("a", 1), others=(("b", 1),))


def test_a_server_that_was_meant_by_torchruns_endpoint_is_what_the_agent_asks_about():
    (note,) = plan("--nnodes", "2", "--rdzv-endpoint", "host:29400", "train.py").notes
    assert note.endswith("hosts rdzv-server for the others (a server that runs there already: --endpoint)")


def test_a_free_port_is_for_one_node():
    assert place("--rdzv-endpoint", "localhost:0") == Target(local_addr="localhost")
    assert "a port from 1 to 65535" in refusal("--nnodes", "2", "--rdzv-endpoint", "localhost:0")


def test_an_endpoint_that_speaks_tls_needs_to_know_whom_to_trust():
    assert refusal("--endpoint", "https://h:1") == "--endpoint: https needs --tls-ca: a file of authorities, or system"
    assert place("--endpoint", "https://h:1", "--tls-ca", "system").endpoint == ("h", 1)


def test_torchruns_own_endpoint_may_be_empty_as_its_default_is():
    assert place("--rdzv-endpoint", "") == Target(has_id_of_its_own=True)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["host:1", "10.0.0.1:29400", "[::1]:29400", "host", "[::1]", " host:1 "])
def test_torchrun_reads_an_endpoint_likewise(text):
    utils = pytest.importorskip("torch.distributed.elastic.rendezvous.utils")
    found = place("--nnodes=2", "--rdzv-backend", "c10d", "--rdzv-endpoint", text, "--rdzv-conf", "is_host=0")
    assert found.endpoint == utils.parse_rendezvous_endpoint(text, 29400)


# How long a server that is gone is waited for.


def test_a_server_on_a_node_is_not_waited_for_for_ever():
    hosted = ["--nnodes", "2", "--master-addr", ELSEWHERE]
    assert plan(*hosted, "train.py").config.server_lost_timeout_s == 300.0
    assert plan(*hosted, "--connect-timeout", "7", "train.py").config.server_lost_timeout_s == 7.0
    assert plan(*hosted, "--server-lost-timeout", "8", "train.py").config.server_lost_timeout_s == 8.0
    assert plan("--endpoint", "host:1", "train.py").config.server_lost_timeout_s == float("inf")
