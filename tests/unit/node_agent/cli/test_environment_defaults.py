"""What the environment says where the command line is silent."""

import pytest

from node_agent.cli.arguments import FLAGS, Arguments
from node_agent.cli.parser import read
from node_agent.config import UsageError
from tests.unit.node_agent.command_lines import complaint

TEXTS = {
    "rdzv_endpoint": "host:29400",
    "standalone": "true",
    "rdzv_backend": "c10d",
    "master_addr": "10.0.0.1",
    "master_port": "29501",
    "rdzv_id": "nightly",
    "nnodes": "2:4",
    "rdzv_conf": "is_host=1",
    "token_file": "token",
    "tls_ca": "ca.pem",
    "tls_cert": "cert.pem",
    "tls_key": "key.pem",
    "connect_timeout": "5",
    "server_lost_timeout": "6",
    "nproc_per_node": "8",
    "node_id": "a",
    "node_rank": "1",
    "local_addr": "10.0.0.2",
    "role": "trainer",
    "no_status_page": "true",
    "virtual_local_rank": "yes",
    "numa_binding": "socket",
    "shutdown_timeout": "7",
    "signals_to_handle": "SIGTERM,SIGUSR1",
    "max_restarts": "3",
    "fatal_exit_codes": "2,-9",
    "join_timeout": "8",
    "last_call_timeout": "9",
    "lease": "10",
    "disconnect_grace": "2",
    "scale_up": "manual",
    "preload": "torch,numpy.random",
    "rerun": "on",
    "log_dir": "logs",
    "redirects": "3",
    "tee": "0:1",
    "local_ranks_filter": "0",
    "ranks_filter": "0,1",
    "duplicate_stdout_filters": "a,,b",
    "duplicate_stderr_filters": "c",
    "log_prefix": "[${rank}] ",
    "logs_specs": "mine",
    "event_log_handler": "console",
    "module": "1",
    "no_python": "1",
    "run_path": "1",
    "use_env": "1",
    "log_line_prefix_template": "<${rank}>",
    "monitor_interval": "0.5",
    "start_method": "fork",
    "exit_barrier_timeout": "9",
}
DEFAULTS = Arguments._field_defaults
LISTS = ("duplicate_stdout_filters", "duplicate_stderr_filters")


def test_every_flag_has_a_text_here():
    assert TEXTS.keys() == FLAGS.keys()


@pytest.mark.parametrize("dest", [dest for dest, flag in FLAGS.items() if flag.has_variable])
def test_every_flag_falls_back_to_its_variable(dest):
    variable = f"PET_{dest.upper()}"
    asked = read(["train.py"], {variable: TEXTS[dest]})
    assert getattr(asked, dest) == FLAGS[dest].read(TEXTS[dest]) != DEFAULTS[dest]
    assert asked.source(dest) == variable
    assert not asked.is_written(dest)


@pytest.mark.parametrize("dest", FLAGS)
def test_a_flag_goes_before_its_variable(dest):
    flag = FLAGS[dest]
    given = [flag.names[0], TEXTS[dest]] if flag.metavar else [flag.names[0]]
    asked = read([*given, "train.py"], {f"PET_{dest.upper()}": "0" if not flag.metavar else "1"})
    assert getattr(asked, dest) == flag.read(TEXTS[dest])
    assert asked.source(dest) == flag.names[0]


@pytest.mark.torch
def test_torchrun_reads_the_same_variables(monkeypatch):
    pytest.importorskip("torch")
    from torch.distributed.argparse_util import check_env, env
    from torch.distributed.run import get_args_parser

    theirs = [action.dest for action in get_args_parser()._actions if isinstance(action, env | check_env)]
    assert {dest for dest, flag in FLAGS.items() if flag.torchruns and flag.has_variable} - set(theirs) == {"use_env"}
    theirs.remove("start_method")
    for dest in theirs:
        variable, text = f"PET_{dest.upper()}", TEXTS[dest] if FLAGS[dest].metavar else "1"  # torchrun knows no words
        with monkeypatch.context() as patched:
            patched.setenv(variable, text)
            value = getattr(get_args_parser().parse_args(["train.py"]), dest)
        value = FLAGS[dest].read(value) if isinstance(value, str) else tuple(value) if dest in LISTS else value
        assert getattr(read(["train.py"], {variable: text}), dest) == value, dest


@pytest.mark.parametrize("text", ["true", "1", "yes", "on", "True"])
def test_a_switch_is_on_by_a_word_or_a_digit(text):
    assert read(["train.py"], {"PET_STANDALONE": text}).standalone is True


@pytest.mark.parametrize("text", ["false", "0", "no", "off", "", " "])
def test_a_switch_is_off_by_a_word_or_a_digit(text):
    assert read(["train.py"], {"PET_STANDALONE": text}).standalone is False


def test_an_empty_variable_says_nothing():
    asked = read(["train.py"], {"PET_NNODES": "", "PET_RDZV_ENDPOINT": ""})
    assert (asked.nnodes, asked.rdzv_endpoint) == (None, "")


@pytest.mark.parametrize(
    ("variable", "dest"),
    [("PET_ENDPOINT", "rdzv_endpoint"), ("PET_NPROC", "nproc_per_node"), ("PET_RUN_ID", "rdzv_id")],
)
def test_our_own_names_have_variables_too_and_torchruns_go_first(variable, dest):
    text = TEXTS[dest]
    assert getattr(read(["train.py"], {variable: text}), dest) == FLAGS[dest].read(text)
    both = read(["train.py"], {variable: "1", f"PET_{dest.upper()}": text})
    assert both.source(dest) == f"PET_{dest.upper()}"


def test_torchs_own_variable_for_the_shutdown_timeout():
    own = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "4"}
    assert read(["train.py"], own).shutdown_timeout == 4.0
    assert read(["train.py"], {**own, "PET_SHUTDOWN_TIMEOUT": "5"}).shutdown_timeout == 5.0
    assert read(["--shutdown-timeout", "6", "train.py"], own).shutdown_timeout == 6.0


@pytest.mark.parametrize(
    ("variable", "text", "what"),
    [
        ("PET_NNODES", "many", "PET_NNODES: 'many' is neither a number of nodes nor MIN:MAX"),
        ("PET_NPROC_PER_NODE", "all", "PET_NPROC_PER_NODE: a whole number from 1 to 4096, auto, cpu, gpu or xpu"),
        ("PET_STANDALONE", "maybe", "PET_STANDALONE: true, yes, on, 1 or false, no, off, 0, not 'maybe'"),
        ("PET_RDZV_CONF", "join_timeout", "PET_RDZV_CONF: settings as KEY=VALUE,KEY=VALUE, not 'join_timeout'"),
        ("PET_RDZV_ENDPOINT", "host:x", "PET_RDZV_ENDPOINT: 'host:x' is not HOST:PORT"),
        ("PET_RDZV_BACKEND", "zeus", "PET_RDZV_BACKEND: c10d, static, etcd, etcd-v2 or rdzv-server, not 'zeus'"),
        ("PET_TOKEN_FILE", "/nowhere", "PET_TOKEN_FILE /nowhere: No such file or directory"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: a number of seconds"),
    ],
)
def test_a_bad_value_is_said_to_come_from_the_variable(variable, text, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert complaint("train.py", environment={variable: text}).startswith(what)


@pytest.mark.parametrize("dest", ["start_method", "logs_specs", "numa_binding"])
def test_variables_that_torchrun_does_not_read_or_check_are_not_read(dest):
    assert getattr(read(["train.py"], {f"PET_{dest.upper()}": "bogus"}), dest) == DEFAULTS[dest]


def test_variables_that_are_nobodys_are_left_alone():
    asked = read(["train.py"], {"PET_SHOP": "closed", "PET_": "x"})
    assert asked._replace(script="") == Arguments()


def test_a_script_may_not_be_left_out():
    with pytest.raises(UsageError, match="SCRIPT"):
        read([], {})
