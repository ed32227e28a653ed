"""The rendezvous target, by torchrun's flags and by ours."""

import socket
from math import inf

import pytest
from rdzv_protocol.words import flags as flag_words

from node_agent import words
from node_agent.kernel.config import Target
from tests.support.message_search import has_message
from tests.unit.node_agent.command_lines import complaint, plan

ELSEWHERE = "198.51.100.7"
"""An address reserved for documentation: no machine has it."""
SAY = words.rendezvous
C10D = "--nnodes=2 --rdzv-backend=c10d"
ALONE = Target(has_id_of_its_own=True)


def place(flags: str, **environment: str) -> Target:
    return plan(*flags.split(), "train.py", **environment).target


def refusal(flags: str) -> str:
    return complaint(*flags.split(), "train.py")


def on_a_node(host: str, port: int, **more: object) -> Target:
    return Target((host, port), is_on_a_node=True, **more)


# One node.


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--standalone",
        "--nnodes 1",
        "--nnodes=1:1 --rdzv-backend static",
        "--standalone --rdzv-backend c10d --rdzv-endpoint host:29400",
    ],
)
def test_one_node_has_its_server_within_and_an_id_of_its_own(flags):
    one, other = plan(*flags.split(), "--run-id", "nightly", "train.py"), plan(*flags.split(), "train.py")
    assert one.target == ALONE
    assert one.config.join.run_id not in (other.config.join.run_id, "nightly", "none")
    assert (one.config.join.settings.min_nodes, one.config.join.settings.max_nodes) == (1, 1)


@pytest.mark.parametrize("flags", ["", "--rdzv-endpoint=localhost:0", "--rdzv_endpoint=localhost:0 --nnodes=1"])
def test_c10d_for_one_node_on_a_free_port_has_its_server_within_and_keeps_its_id(flags):
    given = plan("--rdzv-backend=c10d", *flags.split(), "--rdzv-id", "100", "train.py")
    assert (given.target, given.config.join.run_id) == (Target(), "100")


@pytest.mark.parametrize(
    ("flags", "addr", "port"),
    [
        ("--master-port {port}", "127.0.0.1", True),
        ("--master-addr 10.0.0.7 --master-port {port}", "10.0.0.7", True),
        ("--master-addr 10.0.0.7", "10.0.0.7", False),
        ("--rdzv-backend static --rdzv-endpoint 10.0.0.7:{port}", "10.0.0.7", True),
        ("--master-addr [::1] --master-port {port}", "::1", True),
        ("--rdzv-endpoint localhost:0", "localhost", False),
    ],
)
def test_the_workers_of_one_node_get_exactly_the_master_that_is_given(flags, addr, port, unused_tcp_port):
    found = place(flags.format(port=unused_tcp_port))
    assert (found.endpoint, found.local_addr) == (None, addr)
    assert found.master_port == (unused_tcp_port if port else None)


@pytest.mark.parametrize("flags", ["--master-port {}", "--rdzv-backend static --rdzv-endpoint localhost:{}"])
def test_a_master_port_that_is_taken(flags):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flag = "--rdzv-endpoint" if "endpoint" in flags else "--master-port"
        assert refusal(flags.format(port)).startswith(f"{flag}: cannot reserve {port}")


@pytest.mark.parametrize(
    "flags",
    [
        "--standalone --nnodes=1:2",
        "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --nnodes=1:2",
        "--standalone --master_addr= --master-port=0",
        "--rdzv-backend=c10d --master-port=0 --rdzv-id=",
        "--master-port=0",
        "--rdzv-id=",
    ],
)
def test_command_lines_of_one_node_under_torchrun_run_here(flags):
    given = plan(*flags.split(), "train.py")
    assert (given.target.endpoint, given.target.master_port) == (None, None)
    assert (given.config.join.settings.min_nodes, given.config.join.settings.max_nodes) == (1, 1)
    assert given.config.join.run_id


def test_a_file_rendezvous_works_for_only_one_node():
    flags = "--rdzv-backend=c10d --rdzv-conf=store_type=file --rdzv-endpoint=/tmp/meeting"
    assert place(flags) == Target()
    assert refusal(f"{flags} --nnodes=2") == SAY.not_in_a_file("--rdzv-conf", "--rdzv-endpoint")


@pytest.mark.parametrize(
    "flags",
    [
        "--standalone --master_port=123456",
        "--standalone --rdzv-backend=zeus --rdzv-endpoint=h:123456 --master-addr=two_words? --node-rank=-1",
        "--rdzv-backend=c10d --master_port=123456",
        "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --master_port=-1",
        "--rdzv-endpoint=localhost:0 --master-port=123456",
        "--endpoint=h:1 --master-port=123456",
    ],
)
def test_a_port_without_effect_is_not_checked(flags):
    assert place(flags).master_port is None


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        ("--master-port=123456", "123456"),
        ("--rdzv-backend=static --master-port=123456", "123456"),
        ("--endpoint=auto --master-port=123456", "123456"),
        ("--standalone --master-port=29500x", "29500x"),
    ],
)
def test_a_port_with_an_effect_must_be_a_valid_number(flags, port):
    assert refusal(flags) == f"--master-port: {words.values.not_a_whole_number(0, 65_535, port)}"


# Several nodes.


@pytest.mark.parametrize(
    ("flags", "target"),
    [
        # static: rank 0 hosts the server, and its address is the workers' MASTER_ADDR
        *((f"--nnodes 2 {rank} --master-addr 10.0.0.7 --master-port 29501",
           on_a_node("10.0.0.7", 29501, hosts=True, node_rank=0, local_addr="10.0.0.7"))
          for rank in ("--node-rank 0", "")),
        ("--nnodes 2 --node_rank=1 --master_addr=10.0.0.7 --local-addr 10.0.0.8",
         on_a_node("10.0.0.7", 29500, node_rank=1, local_addr="10.0.0.8")),
        ("--nnodes 2", on_a_node("127.0.0.1", 29500, hosts=True, node_rank=0, local_addr="127.0.0.1")),
        ("--rdzv-backend static --rdzv-endpoint host --nnodes 2",
         on_a_node("host", 29500, hosts=True, node_rank=0, local_addr="host")),
        ("--nnodes 2 --rdzv-conf is_host=false --rdzv-endpoint host:1",
         on_a_node("host", 1, node_rank=0, local_addr="host")),
        ("--nnodes 2 --node-rank 1 --rdzv-conf is_host=true --master-addr host",
         on_a_node("host", 29500, hosts=True, node_rank=1)),
        # c10d: the node that the endpoint names hosts the server
        *((f"{C10D} --rdzv-endpoint {host}:29400", on_a_node(host.strip("[]"), 29400, hosts=True))
          for host in ("localhost", "127.0.0.1", "127.1.2.3", "[::1]")),
        (C10D, on_a_node("localhost", 29400, hosts=True)),
        (f"{C10D} --rdzv-endpoint {ELSEWHERE}:29401", on_a_node(ELSEWHERE, 29401)),
        (f"{C10D} --rdzv-endpoint {ELSEWHERE}", on_a_node(ELSEWHERE, 29400)),
        (f"{C10D} --rdzv-endpoint {ELSEWHERE} --node-rank 1", on_a_node(ELSEWHERE, 29400, preferred_rank=1)),
        (f"{C10D} --rdzv-endpoint localhost --rdzv-conf is_host=no", on_a_node("localhost", 29400)),
        (f"{C10D} --rdzv-endpoint {ELSEWHERE} --rdzv-conf is_host=yes", on_a_node(ELSEWHERE, 29400, hosts=True)),
        # a server that is already running
        *((f"{backend} --endpoint localhost:29400", Target(("localhost", 29400)))
          for backend in ("", "--rdzv-backend rdzv-server", "--rdzv-backend etcd-v2")),
        ("--endpoint host:1 --node-rank 1", Target(("host", 1), node_rank=1)),
        ("--rdzv-backend etcd --rdzv-endpoint host", Target(("host", 2379))),
        ("--rdzv-backend etcd-v2 --rdzv-endpoint host", Target(("host", 2379))),
        ("--nnodes 2 --rdzv-endpoint a:1,b:1", Target(("a", 1), others=(("b", 1),))),
        ("--endpoint https://h:1 --tls-ca system", Target(("h", 1))),
        ("--rdzv-endpoint=", ALONE),  # the default under torchrun
    ],
)  # fmt: skip
def test_the_flags_decide_where_the_nodes_meet(flags, target):
    assert place(flags) == target


@pytest.mark.parametrize(
    ("flags", "alone"),
    [
        ("--nnodes=2 --rdzv-endpoint=localhost:29400", False),
        ("--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:29400", False),
        ("--nnodes=2 --master-addr=::1", False),
        (f"{C10D} --endpoint=localhost:29400", True),
        ("--nnodes=2 --rdzv-backend=static --endpoint=127.1.2.3:29400", True),
        ("--nnodes=2 --rdzv-conf=is_host=1 --endpoint=[::1]:29400", True),
        ("--nnodes=2 --rdzv-conf=is_host=1 --endpoint=127.gpu:29400", False),
        ("--rdzv-backend=c10d --rdzv-endpoint=localhost:29400", True),
    ],
)
def test_a_server_at_loopback_is_for_nodes_elsewhere_too_where_torchruns_would_be(flags, alone):
    found = place(flags)
    assert (found.hosts, found.is_for_this_machine) == (True, alone)


KUBEFLOW = {"PET_NNODES": "4", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "job-0.job", "PET_MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("flags", "environment", "target"),
    [
        ("", {**KUBEFLOW, "PET_NODE_RANK": "0"},
         on_a_node("job-0.job", 29500, hosts=True, node_rank=0, local_addr="job-0.job")),
        ("", {**KUBEFLOW, "PET_NODE_RANK": "3"}, on_a_node("job-0.job", 29500, node_rank=3)),
        ("", {"PET_NODE_RANK": "1"}, ALONE),
        (f"{C10D} --rdzv-endpoint {ELSEWHERE}", {"PET_NODE_RANK": "1"}, on_a_node(ELSEWHERE, 29400)),
        ("--endpoint h:1", {"PET_MASTER_ADDR": "x", "PET_MASTER_PORT": "1", "PET_NODE_RANK": "2"}, Target(("h", 1))),
        ("--nnodes 2", {"PET_ENDPOINT": "host:1"}, Target(("host", 1))),
        ("--nnodes 2", {"PET_RDZV_ENDPOINT": "host:1"},
         on_a_node("host", 1, hosts=True, node_rank=0, local_addr="host")),
        ("--nnodes 2", {"PET_RDZV_ENDPOINT": "a:1,b:1"}, Target(("a", 1), others=(("b", 1),))),
    ],
)  # fmt: skip
def test_operators_variables_decide_where_the_nodes_meet(flags, environment, target):
    assert place(flags, **environment) == target


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--nnodes 2 --node-rank 2", SAY.rank_too_high("--node-rank", 2, nodes=2)),
        ("--endpoint h:1 --nnodes 2 --node-rank 5", SAY.rank_too_high("--node-rank", 5, nodes=2)),
        (f"{C10D} --rdzv-endpoint localhost:0", SAY.port_unknown("--rdzv-endpoint")),
        ("--nnodes 2 --master-port 0", SAY.port_unknown("--master-port")),
        ("--nnodes 2 --rdzv-endpoint h:0", f"--rdzv-endpoint: {flag_words.bad_endpoint('h:0', 1)}"),
        *((f"--rdzv-backend {backend}", SAY.no_endpoint("--rdzv-backend", backend, "--endpoint"))
          for backend in ("etcd", "etcd-v2", "rdzv-server")),
        ("--endpoint https://h:1", flag_words.https_without_ca("--endpoint", "--tls-ca")),
        ("--endpoint h:1 --tls-ca system --tls-cert x", flag_words.belong_together("--tls-cert", "--tls-key")),
        ("--endpoint h:1 --tls-cert x --tls-key y", words.plan.tls_without_ca("--tls-cert", "--tls-ca")),
        ("--endpoint ftp://h:1", f"--endpoint: {flag_words.bad_scheme('ftp://h:1', 'ftp')}"),
        ("--endpoint ::1", f"--endpoint: {flag_words.no_port('::1', '[::1]:29400')}"),
        ("--standalone --nnodes 2:3", SAY.only_one_node("--standalone", "--nnodes", "--endpoint")),
    ],
)  # fmt: skip
def test_contradicting_flags_are_refused(flags, line):
    assert refusal(flags) == line


@pytest.mark.parametrize(
    ("flags", "environment", "note"),
    [
        ("--nnodes 2", {}, SAY.no_node_rank(2, has_endpoint=False)),
        ("--nnodes 2 --node-rank 0", {}, ""),
        ("--nnodes 2 --node-rank 1", {}, SAY.no_master_addr("127.0.0.1")),
        ("--nnodes 2 --node-rank 1 --master-addr host", {}, ""),
        ("--nnodes 2 --rdzv-endpoint host:29400", {}, SAY.no_node_rank(2, has_endpoint=True)),
        *((f"{flags} --node-rank 1", {}, SAY.rank_of_one_node("--node-rank", 1))
          for flags in ("", "--nnodes=1", "--rdzv-backend=c10d")),
        ("--standalone --endpoint host:1 --rdzv_id 7", {"PET_RDZV_BACKEND": "c10d"},
         SAY.ignored_on_one_node("--standalone", ["--endpoint", "--rdzv_id"])),
        ("--standalone --master-port 29445 --master_addr 1.2.3.4 --node-rank 1", {},
         SAY.ignored_on_one_node("--standalone", ["--master_addr", "--master-port", "--node-rank"])),
        ("--standalone", {"PET_MASTER_PORT": "1", "PET_MASTER_ADDR": "h", "PET_NODE_RANK": "1"}, ""),
        *((f"--nnodes {nodes} {endpoint} --master-port 29445 --master_addr h", {},
           SAY.ignored_beside_endpoint(["--master_addr", "--master-port"], endpoint.split()[0]))
          for nodes in (1, 2)
          for endpoint in ("--endpoint h:1", "--rdzv-endpoint h:1 --rdzv-backend c10d --rdzv-conf is_host=0",
                           "--rdzv-endpoint h:1 --node-rank 0")),
        ("--rdzv-backend c10d --master-port 29445", {}, SAY.ignored_without_static(["--master-port"])),
        ("--rdzv-backend c10d --nnodes 2 --master-addr h", {}, SAY.ignored_without_static(["--master-addr"])),
        *((f"{flags} --master-port 0 --master-addr 127.0.0.1", {}, "")
          for flags in ("", "--nnodes=1", "--rdzv-backend static")),
        ("--endpoint h:1", {"PET_MASTER_PORT": "1", "PET_MASTER_ADDR": "h"}, ""),
    ],
)  # fmt: skip
def test_values_that_are_probably_missing_or_void_are_reported(flags, environment, note):
    assert "".join(plan(*flags.split(), "train.py", **environment).notes) == note


@pytest.mark.parametrize(("variable", "value"), [("WORLD_SIZE", "4"), ("RANK", "2"), ("JOB_COMPLETION_INDEX", "1")])
def test_several_nodes_in_the_environment_without_flags_cause_a_warning(variable, value):
    environment = {"RANK": "0", variable: value}
    (note,) = plan("train.py", **environment).notes
    assert note == SAY.several_nodes(variable, value, is_of_a_scheduler=False)
    for flag in ("--standalone", "--nnodes=1", "--endpoint=h:1"):
        assert plan(flag, "train.py", **environment).notes == ()
    assert plan("train.py", TORCHELASTIC_RUN_ID="x", **environment).notes == ()


# An endpoint.


@pytest.mark.parametrize(
    ("text", "endpoint"),
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
def test_an_endpoint(text, endpoint):
    assert place(f"--endpoint {text}").endpoint == endpoint


NO_HOST = [":29400", "29400"]
NO_PORT = ["host", "::1", "[::1]", "fe80::1:2940", "http://host", ""]
BAD_PORT = ["host:", "host:0", "host:65536", "host:http", "host:²", "host:-1", "a b:1", "[]:1", "a/b:1"]
BAD_PORT += ["a b", "a;1", "a:1 b:2", "user:pw@host:1", "user@host"]


@pytest.mark.parametrize("text", NO_HOST)
@pytest.mark.parametrize("flag", ["--endpoint", "--rdzv-backend=c10d --nnodes=2 --rdzv-endpoint"])
def test_an_endpoint_without_a_host_is_often_an_empty_variable(flag, text):
    assert flag_words.no_host(text) in complaint(*flag.split(), text, "train.py")


@pytest.mark.parametrize("text", [*NO_PORT, *BAD_PORT])
def test_an_invalid_endpoint_is_explained(text):
    says = complaint("--endpoint", text, "train.py")
    stripped = text.removeprefix("http://")
    assert (
        has_message(says, flag_words.no_port, text=stripped)
        if text in NO_PORT
        else flag_words.bad_endpoint(text, 1) in says
    )


@pytest.mark.torch
@pytest.mark.parametrize("text", ["host:1", "10.0.0.1:29400", "[::1]:29400", "host", "[::1]", " host:1 "])
def test_torchrun_reads_an_endpoint_in_the_same_way(text):
    utils = pytest.importorskip("torch.distributed.elastic.rendezvous.utils")
    found = plan(*C10D.split(), "--rdzv-endpoint", text, "--rdzv-conf", "is_host=0", "train.py").target
    assert found.endpoint == utils.parse_rendezvous_endpoint(text, 29400)


@pytest.mark.parametrize(
    ("flags", "limit_s"),
    [
        (f"--nnodes 2 --master-addr {ELSEWHERE}", 300.0),
        (f"--nnodes 2 --master-addr {ELSEWHERE} --connect-timeout 7", 7.0),
        (f"--nnodes 2 --master-addr {ELSEWHERE} --server-lost-timeout 8", 8.0),
        ("--endpoint host:1", inf),
    ],
)
def test_the_wait_for_a_server_on_a_node_is_bounded(flags, limit_s):
    assert plan(*flags.split(), "train.py").config.server_lost_timeout_s == limit_s
