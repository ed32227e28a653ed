"""Every flag with a value that makes no sense: one line that names the flag, and nothing is started."""

import pytest

from node_agent.cli import values
from node_agent.cli.arguments import FLAGS
from tests.unit.node_agent.command_lines import complaint

NO_SECONDS = "a number of seconds from 0 to 1e+06, not 'soon'"
NO_STREAMS = "0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a map from local ranks such as 0:1,1:3, not '4'"

BAD = [
    ("rdzv_endpoint", "host:port", "'host:port' is not HOST:PORT with a port from "),
    ("rdzv_backend", "zeus", "c10d, static, etcd, etcd-v2 or rdzv-server, not 'zeus'"),
    ("master_addr", "two\nlines", "1 to 128 printable characters, not 'two\\nlines'"),
    ("master_port", "-1", "a whole number from 0 to 65535, not '-1'"),
    ("rdzv_id", "two\nlines", "1 to 128 printable characters, not 'two\\nlines'"),
    ("nnodes", "4:2", "4:2: MIN is above MAX; did you mean 2:4?"),
    ("nnodes", "some", "'some' is neither a number of nodes nor MIN:MAX"),
    ("nnodes", "0", "0: from 1 to 100000 nodes"),
    ("rdzv_conf", "join_timeout", "settings as KEY=VALUE,KEY=VALUE, not 'join_timeout'"),
    ("rdzv_conf", "join_timeout=soon", "join_timeout: " + NO_SECONDS),
    ("token_file", "/no/such/file", "No such file or directory"),
    ("tls_ca", "/no/such/file", "a server that a node hosts speaks no TLS"),
    ("tls_cert", "/no/such/file", "a server that a node hosts speaks no TLS"),
    ("tls_key", "/no/such/file", "a server that a node hosts speaks no TLS"),
    ("connect_timeout", "soon", NO_SECONDS),
    ("server_lost_timeout", "soon", NO_SECONDS),
    ("nproc_per_node", "0", "a whole number from 1 to 4096, auto, cpu, gpu or xpu, not '0'"),
    ("nproc_per_node", "two", "a whole number from 1 to 4096, auto, cpu, gpu or xpu, not 'two'"),
    ("node_id", "two\nlines", "1 to 128 printable characters, not 'two\\nlines'"),
    ("node_rank", "-1", "a whole number from 0 to 10000000, not '-1'"),
    ("local_addr", "two\nlines", "1 to 128 printable characters, not 'two\\nlines'"),
    ("role", "x" * 129, "1 to 128 printable characters, not 'xxxx"),
    ("numa_binding", "core", "node, socket, exclusive or core-complex, not 'core'"),
    ("shutdown_timeout", "-1", "a number of seconds from 0 to 1e+06, not '-1'"),
    ("signals_to_handle", "SIGTERM,SIGKILL", "SIGKILL cannot be caught: leave it out"),
    ("max_restarts", "-1", "a whole number from 0 to 10000000, not '-1'"),
    ("fatal_exit_codes", "1,,2", "a whole number from -255 to 255, not ''"),
    ("fatal_exit_codes", "256", "a whole number from -255 to 255, not '256'"),
    ("join_timeout", "nan", "a number of seconds from 0 to 1e+06, not 'nan'"),
    ("last_call_timeout", "inf", "a number of seconds from 0 to 1e+06, not 'inf'"),
    ("lease", "0", "a number of seconds from 0.1 to 86400, not '0'"),
    ("lease", "86401", "a number of seconds from 0.1 to 86400, not '86401'"),
    ("disconnect_grace", "soon", NO_SECONDS),
    ("preload", "torch,", "names of modules, such as torch or torch,numpy.random, not ''"),
    ("scale_up", "later", "immediate, cooldown or manual, not 'later'"),
    ("log_dir", "train.py", "train.py is a file: name a folder, or /dev/null for no files"),
    ("redirects", "4", NO_STREAMS),
    ("tee", "4", NO_STREAMS),
    ("local_ranks_filter", "first", "ranks, such as 0,1,2, not 'first'"),
    ("ranks_filter", "0,", "ranks, such as 0,1,2, not '0,'"),
    ("log_prefix", "${who}", "there is no ${who}: a template may use ${role_name} ${rank} ${local_rank}"),
    ("logs_specs", "nobodys", "there is no torchrun.logs_specs entry point 'nobodys'; "),
    ("event_log_handler", "file", "null or console, not 'file'"),
    ("monitor_interval", "soon", NO_SECONDS),
    ("exit_barrier_timeout", "soon", NO_SECONDS),
    ("start_method", "exec", "spawn, fork or forkserver, not 'exec'"),
]

ANY_TEXT = {"duplicate_stdout_filters", "duplicate_stderr_filters", "log_line_prefix_template"}


@pytest.fixture(autouse=True)
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def test_every_flag_that_takes_a_value_has_a_bad_one_here():
    takes_a_value = {dest for dest, flag in FLAGS.items() if flag.metavar}
    assert {dest for dest, *_ in BAD} | ANY_TEXT == takes_a_value
    assert all(flag.read is values.switch for dest, flag in FLAGS.items() if dest not in takes_a_value)


@pytest.mark.parametrize(("dest", "text", "what"), BAD, ids=[f"{dest}={text[:20]!r}" for dest, text, _ in BAD])
def test_a_value_that_makes_no_sense(dest, text, what):
    for name in FLAGS[dest].spellings:
        line = complaint(*([name, text] if len(name) == 2 else [f"{name}={text}"]), "train.py")
        assert line.startswith(name)
        assert what in line


@pytest.mark.parametrize("dest", [dest for dest, flag in FLAGS.items() if not flag.metavar])
def test_a_switch_takes_no_value(dest):
    assert complaint(f"{FLAGS[dest].names[-1]}=x", "train.py").startswith(
        f"{FLAGS[dest].names[-1]}: ignored explicit argument 'x'"
    )


@pytest.mark.parametrize("dest", [dest for dest, flag in FLAGS.items() if flag.metavar])
def test_a_value_that_is_missing(dest):
    typed = FLAGS[dest].names[-1]
    assert complaint(typed).startswith(f"{typed}: expected one argument")


def test_a_flag_that_is_none():
    line = complaint("--no-such-flag", "train.py")
    assert line == "unrecognized arguments: --no-such-flag (node-agent --help explains every flag)"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--nprocs=2", "--nproc"),
        ("--node_ids=a", "--node-id"),
        ("--endpiont=h:1", "--endpoint"),
        ("--nodes=2", "--nnodes"),
    ],
)
def test_a_flag_that_was_probably_meant(typed, meant):
    assert complaint(typed, "train.py").startswith(f"unrecognized arguments: {typed}; did you mean {meant}? (")


# Values that make no sense together, or here.


def test_alone_is_not_for_several_nodes():
    line = complaint("--standalone", "--nnodes", "2:3", "train.py")
    assert line == ("--standalone is for one node: leave --nnodes out, or start rdzv-server and give --endpoint")


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two\nlines", b"two words", b"# a comment", "größe".encode(), b"\xff"]
)
def test_a_token_file_that_holds_no_token(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    assert complaint("--standalone", "--token-file", "token", "train.py").startswith("--token-file token: ")


@pytest.mark.parametrize("nproc", ["gpu", "xpu"])
def test_devices_that_are_not_there(nproc):
    line = complaint("--nproc", nproc, "train.py", environment={"CUDA_VISIBLE_DEVICES": ""})
    assert line.startswith(f"--nproc {nproc}: workers would see no {nproc.upper()}: ")


@pytest.mark.parametrize(("visible", "nproc"), [("0,1", "3"), ("", "2"), ("GPU-1a", "2")])
def test_more_workers_than_gpus_of_their_own(visible, nproc):
    flags = ("--virtual-local-rank", "--nproc", nproc, "train.py")
    line = complaint(*flags, environment={"CUDA_VISIBLE_DEVICES": visible})
    assert line.startswith(f"--virtual-local-rank: {nproc} workers, but CUDA_VISIBLE_DEVICES={visible} has ")
