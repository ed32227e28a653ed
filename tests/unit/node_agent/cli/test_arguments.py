"""Every argument: what its flag, variable and key of `--rdzv-conf` accept, and the line that refuses other values."""

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from math import inf

import pytest
from msgspec.structs import asdict, replace
from rdzv_protocol.flag_values import node_counts
from rdzv_protocol.settings import RequestedSettings, RunSettings
from rdzv_protocol.words import flags as flag_words

from node_agent import flags as values
from node_agent import words
from node_agent.cli.arguments import FLAGS, OF_THE_RUN, SETTINGS, Arguments, make
from node_agent.cli.command_line import read
from node_agent.cli.parser import OF_THE_SERVER, Parser
from node_agent.cli.plan import SAME_NAMES, settings
from node_agent.features.checks import CHECKS
from node_agent.features.checks import words as checks
from node_agent.features.hangs import words as hangs
from node_agent.features.notices import words as notices
from node_agent.features.preemption import CLOUDS
from node_agent.features.preemption import words as preemption
from node_agent.features.readiness import words as readiness
from node_agent.features.tell_scheduler import KINDS
from node_agent.features.tell_scheduler import words as tell_scheduler
from node_agent.kernel.config import UsageError
from node_agent.kernel.core.log_options import PREFIX_NAMES, Std
from rdzv_server.cli import OF_THE_AGENT, make_parser
from tests.support.cases import case
from tests.support.message_search import pattern
from tests.unit.node_agent.command_lines import DEFAULTS, complaint, plan

LISTS = ("duplicate_stdout_filters", "duplicate_stderr_filters")
SAY = words.values
PLUGINS = sorted(each.name for each in entry_points(group="torchrun.logs_specs"))
STREAMS = SAY.not_streams("4")
TWO_LINES = SAY.not_a_name("two\nlines")
HOSTED = words.plan.no_tls_on_a_node("", "--endpoint", "--rdzv-backend")


def a_number(low: int, high: int, given: str) -> str:
    return SAY.not_a_whole_number(low, high, given)


def a_time(given: str, low: float = 0, high: float = 10**6) -> str:
    return SAY.not_seconds(low, high, given)


# fmt: off
TABLE = {  # by argument: a good text, a bad one, and the message about the bad one
    "rdzv_endpoint": ("host:29400", "host:port", flag_words.bad_endpoint("host:port", 0).partition("0")[0]),
    "rdzv_backend": ("c10d", "zeus", SAY.not_one_of(values.BACKENDS, "zeus")),
    "master_addr": ("10.0.0.1", "two\nlines", TWO_LINES),
    "master_port": ("29501", "-1", a_number(0, 65_535, "-1")),
    "rdzv_id": ("nightly", "two\nlines", TWO_LINES),
    "nnodes": ("2:4", "4:2", flag_words.min_above_max("4:2", 4, 2)),
    "rdzv_conf": ("is_host=1", "join_timeout", SAY.not_pairs("join_timeout")),
    "token_file": ("token", "/no/such/file", "No such file or directory"),
    "tls_ca": ("ca.pem", "/no/such/file", HOSTED),
    "tls_cert": ("cert.pem", "/no/such/file", HOSTED),
    "tls_key": ("key.pem", "/no/such/file", HOSTED),
    "connect_timeout": ("5", "soon", a_time("soon")),
    "server_lost_timeout": ("6", "soon", a_time("soon")),
    "nproc_per_node": ("8", "0", SAY.not_a_whole_number(1, 4096, "0", values.PLACES)),
    "node_id": ("a", "two\nlines", TWO_LINES),
    "node_rank": ("1", "-1", a_number(0, 10_000_000, "-1")),
    "local_addr": ("10.0.0.2", "two words", SAY.not_a_host("two words")),
    "metrics_port": ("0", "http", SAY.not_a_place("http")),
    "ready_file": ("ready", "gone/ready", readiness.not_writable("", "gone/ready")),
    "check": ("gpus,disk=20", "gpu", checks.not_a_check(CHECKS, "gpu")),
    "pre_join_check_timeout": ("9", "0", a_time("0", 0.1, 3600)),
    "role": ("trainer", "x" * 129, SAY.not_a_name("x" * 129)),
    "numa_binding": ("socket", "core", SAY.not_one_of(("node", "socket", "exclusive", "core-complex"), "core")),
    "shutdown_timeout": ("7", "-1", a_time("-1")),
    "signals_to_handle": ("SIGTERM,SIGUSR1", "SIGTERM,SIGKILL", SAY.signal_uncatchable("SIGKILL")),
    "notice_timeout": ("60", "soon", a_time("soon")),
    "notice_signal": ("SIGUSR2", "SIGNONE", SAY.not_a_signal("SIGNONE")),
    "preemption_file": ("preempted", "gone/preempted", preemption.not_a_file("", "gone/preempted")),
    "preemption_poll": ("aws", "ibm", preemption.not_a_cloud(CLOUDS, "ibm")),
    "preemption_annotations": ("annotations", "gone/annotations", preemption.not_a_file("", "gone/annotations")),
    "tell_scheduler": ("slurm", "nomad", tell_scheduler.not_a_scheduler(KINDS, "nomad")),
    "gpu_free_timeout": ("60", "soon", a_time("soon", 0, 3600)),
    "max_restarts": ("3", "-1", a_number(0, 10_000_000, "-1")),
    "restart_window": ("3600", "0", a_time("0", 1, 1e9)),
    "restart_backoff": ("10", "soon", a_time("soon")),
    "restart_backoff_max": ("60", "soon", a_time("soon")),
    "max_restarts_without_progress": ("3", "0", a_number(1, 10_000_000, "0")),
    "fatal_exit_codes": ("2,-9", "1,,2", a_number(-255, 255, "")),
    "fatal_rule": ("bad record", "(", SAY.not_a_pattern("(", "")),
    "retry_rule": ("store", "x" * 513, SAY.pattern_too_long(512, 513)),
    "progress_timeout": ("step=60", "step", hangs.not_progress_limits("step")),
    "silence_timeout": ("600", "0", a_time("0", 1)),
    "log_rule": ("fault: NaN", "NaN", hangs.not_a_rule("NaN")),
    "on_hang": ("report", "kill", SAY.not_one_of(("restart", "fail", "report"), "kill")),
    "max_hang_restarts": ("2", "-1", a_number(0, 10_000_000, "-1")),
    "straggler_factor": ("1.2", "1", SAY.not_a_number(1.1, 100, "1")),
    "join_timeout": ("8", "nan", a_time("nan")),
    "last_call_timeout": ("9", "inf", a_time("inf")),
    "node_unit": ("2", "0", a_number(1, 100_000, "0")),
    "fixed_nodes": ("4", "0", a_number(1, 100_000, "0")),
    "shrink_after": ("60", "soon", a_time("soon")),
    "lease": ("10", "0", a_time("0", 0.1, 86_400)),
    "disconnect_grace": ("2", "soon", a_time("soon", 0, 3600)),
    "scale_up_cooldown": ("60", "soon", a_time("soon", 0, 10_000_000)),
    "scale_up": ("manual", "later", SAY.not_one_of(("immediate", "cooldown", "manual", "on-notice"), "later")),
    "rank_policy": ("topology", "random", SAY.not_one_of(("sticky", "topology", "fill-gaps"), "random")),
    "topology": ("rack1.node2", "two\nlines", TWO_LINES),
    "preload": ("torch,numpy.random", "torch,", SAY.not_modules("")),
    "log_dir": ("logs", "train.py", words.plan.log_dir_unusable("", "train.py is a file", "/dev/null")),
    "redirects": ("3", "4", STREAMS),
    "tee": ("0:1", "4", STREAMS),
    "local_ranks_filter": ("0", "first", SAY.not_ranks("first")),
    "ranks_filter": ("0,1", "0,", SAY.not_ranks("0,")),
    "log_prefix": ("[${rank}] ", "${who}", SAY.not_in_templates("who", PREFIX_NAMES)),
    "logs_specs": ("mine", "nobodys", words.plan.no_logs_specs("", "nobodys", PLUGINS)),
    "log_format": ("json", "xml", SAY.not_one_of(("text", "json"), "xml")),
    "event_log_handler": ("console", "file", SAY.not_one_of(("null", "console"), "file")),
    "monitor_interval": ("0.5", "soon", a_time("soon")),
    "exit_barrier_timeout": ("9", "soon", a_time("soon")),
    "start_method": ("fork", "exec", SAY.not_one_of(("spawn", "fork", "forkserver"), "exec")),
}
MORE_BAD = [
    ("nnodes", "some", flag_words.bad_node_counts("some")),
    ("nnodes", "0", flag_words.too_many_nodes("0")),
    *(
        ("rdzv_conf", text, SAY.not_pairs(wrong))
        for text, wrong in (("join_timeout=", "join_timeout="), ("=5", "=5"), ("a=1,", ""), (",", ""), ("a=1,,b=2", ""))
    ),
    ("rdzv_conf", "join_timeout=soon", f"join_timeout: {a_time('soon')}"),
    ("nproc_per_node", "two", SAY.not_a_whole_number(1, 4096, "two", values.PLACES)),
    ("fatal_exit_codes", "256", a_number(-255, 255, "256")),
    ("log_rule", "fault: x\nevery=: x", hangs.not_a_rule("every=: x")),
    *(("log_rule", f"{part}: x", f"{part.partition('=')[0]} of '{part}: x': {refusal(part.partition('=')[2])}")
      for parts, refusal in (("every=soon every=0 first=-1 first=nan", lambda given: a_time(given, 0.1)),
                             ("rank=-1", lambda given: a_number(0, 10_000_000, given)),
                             ("points=0", lambda given: a_number(1, 1_000_000, given)),
                             ("least=x most=nan", lambda given: SAY.not_a_number(-inf, inf, given)))
      for part in parts.split()),
    ("progress_timeout", "factor=0.5", hangs.not_progress_limits("factor=0.5")),
    *(("log_rule", line, hangs.no_pattern(line, how))
      for line, how in (("most=50", "most=50"), ("most=50,points=3:", "most=50,points=3"))),
    ("log_rule", "fault: (", SAY.not_a_pattern("(", "")),
    *(("log_rule", line, hangs.not_a_part_of_a_rule(wrong))
      for line, wrong in (("fault=1: x", "fault=1"), ("first=600,evry=60: step", "evry=60"))),
    ("progress_timeout", "step=0", hangs.not_progress_limits("step=0")),
    ("lease", "86401", a_time("86401", 0.1, 86_400)),
]
ANY_TEXT = dict(
    zip((*LISTS, "log_line_prefix_template", "pre_join_check"), ("a,,b", "c", "<${rank}>", "exit 0"), strict=True)
)
SWITCHES = {argument: "true" for argument, flag in FLAGS.items() if not flag.metavar}
# fmt: on
GOOD = {argument: good for argument, (good, *_) in TABLE.items()} | ANY_TEXT | SWITCHES
BAD = [(argument, bad, line) for argument, (_, bad, line) in TABLE.items()] + MORE_BAD


def test_every_flag_is_in_the_table():
    assert GOOD.keys() == FLAGS.keys()
    assert all(FLAGS[argument].read is values.switch for argument in SWITCHES)


# Flags.


def test_an_invalid_value_is_refused_under_each_name_of_its_flag():
    for argument, text, what in BAD:
        for name in FLAGS[argument].spellings:
            with case((name, text)):
                line = complaint(*([name, text] if len(name) == 2 else [f"{name}={text}"]), "train.py")
                assert line.startswith(name)
                assert what in line


def test_a_switch_takes_no_value_and_any_other_flag_takes_one():
    for argument, flag in FLAGS.items():
        name = flag.names[-1]
        with case(argument):
            if flag.metavar:
                assert complaint(name).startswith(f"{name}: expected one argument")
            else:
                assert complaint(f"{name}=x", "train.py").startswith(f"{name}: ignored explicit argument 'x'")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--no-such-flag", ""),
        ("--nprocs=2", "; did you mean --nproc?"),
        ("--node_ids=a", "; did you mean --node-id?"),
        ("--endpiont=h:1", "; did you mean --endpoint?"),
        ("--nodes=2", "; did you mean --nnodes?"),
    ],
)
def test_an_unknown_flag_is_refused_with_a_suggestion(typed, meant):
    assert complaint(typed, "train.py") == words.cli.see_help(words.cli.unknown_argument(typed, meant))


def test_flags_of_the_other_program_are_recognized():
    servers = {
        name
        for action in make_parser()._actions
        for name in action.option_strings
        if name.startswith("--") and "_" not in name
    }
    assert {name for name in servers if Parser().spelling(name) is None} == OF_THE_SERVER
    assert all(Parser().spelling(name) == name and name not in servers for name in OF_THE_AGENT)
    assert complaint("--exclude-after", "3/24h", "train.py") == words.cli.see_help(
        words.cli.flag_of_server("--exclude-after")
    )


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two\nlines", b"two words", b"# a comment", "größe".encode(), b"\xff"]
)
def test_a_token_file_that_holds_no_token(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    assert complaint("--standalone", "--token-file", "token", "train.py").startswith("--token-file token: ")


@pytest.mark.parametrize("nproc", ["gpu", "xpu"])
def test_devices_that_are_not_there(nproc, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('takes long')")
    environment = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    line = complaint("--nproc", nproc, "train.py", environment=environment)
    assert line.startswith(f"--nproc {nproc}: workers would see no {nproc.upper()}: ")


@pytest.mark.parametrize(("visible", "nproc"), [("0,1", "3"), ("", "2"), ("GPU-1a", "2")])
def test_more_workers_than_gpus_of_their_own(visible, nproc):
    flags = ("--virtual-local-rank", "--nproc", nproc, "train.py")
    line = complaint(*flags, environment={"CUDA_VISIBLE_DEVICES": visible})
    gpus = len(visible.split(",")) if visible else 0
    assert line == words.plan.too_few_gpus(
        "--virtual-local-rank", int(nproc), "CUDA_VISIBLE_DEVICES", value=visible, gpus=gpus
    )


# Settings of the run.


@pytest.mark.parametrize(("setting", "argument"), SAME_NAMES.items())
def test_a_setting_is_asked_for_by_the_flag_of_its_name(setting, argument):
    given = [f"{FLAGS[argument].names[0]}={GOOD[argument]}"] if FLAGS[argument].metavar else [FLAGS[argument].names[0]]
    asked, others = (plan("--endpoint=h:1", *words, "train.py").config.join.settings for words in (given, []))
    assert (getattr(asked, setting), getattr(others, setting)) == (FLAGS[argument].read(GOOD[argument]), None)


def own_defaults() -> Iterator[tuple[str, str, object]]:
    """Yield the flags with a default of their own or of the run: argument, the default that the help names, and it."""
    run = asdict(RunSettings())
    for argument, flag in FLAGS.items():
        default = DEFAULTS[argument]
        if default is None:
            default = run.get(argument, run.get(f"{argument}_s"))
        if (named := re.search(r"\(default: ([^);]+)", flag.help)) and default and flag.metavar:
            yield argument, named[1], default


@pytest.mark.parametrize("argument, named, default", [*own_defaults()])
def test_help_names_the_default(argument: str, named: str, default: object) -> None:
    assert FLAGS[argument].read(named) == default


def test_every_setting_has_a_flag_that_asks_for_it() -> None:
    of_nnodes, of_other_agents = {"min_nodes", "max_nodes", "legal_sizes"}, {"scale_up_window_s"}
    assert set(RequestedSettings.__struct_fields__) - set(SAME_NAMES) == of_nnodes | of_other_agents


# Variables.


def test_every_flag_falls_back_to_its_variable():
    for argument, flag in FLAGS.items():
        if not flag.has_variable:
            continue
        with case(argument):
            variable = f"PET_{argument.upper()}"
            asked = read(["train.py"], {variable: GOOD[argument]})
            assert asked.value(argument) == flag.read(GOOD[argument]) != DEFAULTS[argument]
            assert asked.source(argument) == variable
            assert not asked.is_written(argument)


def test_a_flag_goes_before_its_variable():
    for argument, flag in FLAGS.items():
        with case(argument):
            given = [flag.names[0], GOOD[argument]] if flag.metavar else [flag.names[0]]
            asked = read([*given, "train.py"], {f"PET_{argument.upper()}": "1" if flag.metavar else "0"})
            assert asked.value(argument) == flag.read(GOOD[argument])
            assert asked.source(argument) == flag.names[0]


@pytest.mark.torch
def test_torchrun_reads_the_same_variables(monkeypatch):
    from torch.distributed.argparse_util import check_env, env
    from torch.distributed.run import get_args_parser

    theirs = [action.dest for action in get_args_parser()._actions if isinstance(action, env | check_env)]
    assert {dest for dest, flag in FLAGS.items() if flag.torchruns and flag.has_variable} - set(theirs) == {"use_env"}
    theirs.remove("start_method")
    for dest in theirs:
        variable, text = f"PET_{dest.upper()}", GOOD[dest] if FLAGS[dest].metavar else "1"  # torchrun accepts no words
        with monkeypatch.context() as patched:
            patched.setenv(variable, text)
            value = getattr(get_args_parser().parse_args(["train.py"]), dest)
        value = FLAGS[dest].read(value) if isinstance(value, str) else tuple(value) if dest in LISTS else value
        assert read(["train.py"], {variable: text}).value(dest) == value, dest


@pytest.mark.parametrize(
    ("environment", "argument", "source"),
    [
        ({"PET_ENDPOINT": "h:1"}, "rdzv_endpoint", "PET_ENDPOINT"),
        ({"PET_NPROC": "1", "PET_NPROC_PER_NODE": "8"}, "nproc_per_node", "PET_NPROC_PER_NODE"),
        ({"PET_RUN_ID": "1", "PET_RDZV_ID": "2"}, "rdzv_id", "PET_RDZV_ID"),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "4"}, "shutdown_timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "4", "PET_SHUTDOWN_TIMEOUT": "5"}, "shutdown_timeout",
         "PET_SHUTDOWN_TIMEOUT"),
    ],
)  # fmt: skip
def test_among_several_variables_torchruns_takes_precedence(environment, argument, source):
    asked = read(["train.py"], environment)
    assert asked.source(argument) == source
    assert asked.value(argument) == FLAGS[argument].read(environment[source])


@pytest.mark.parametrize("variable", ["PET_START_METHOD", "PET_LOGS_SPECS", "PET_NUMA_BINDING", "PET_SHOP", "PET_"])
def test_variables_that_torchrun_does_not_read_are_left_alone(variable):
    assert replace(read(["train.py"], {variable: "bogus"}), script="") == Arguments()


@pytest.mark.parametrize("switch", [name for name in OF_THE_RUN if not FLAGS[name].metavar])
def test_a_switch_of_the_run_can_be_on_off_or_the_runs(switch):
    variable = f"PET_{switch.upper()}"
    found = [settings(read(["train.py"], each)) for each in ({variable: "1"}, {variable: "0"}, {})]
    assert [getattr(each, switch) for each in found] == [True, False, None]
    assert found[1].conflicts(found[0].resolve()) == [flag_words.other_setting(FLAGS[switch].names[-1], True, False)]


def test_an_empty_variable_says_nothing():
    environment = {"PET_NNODES": "", "PET_RDZV_ENDPOINT": "", "PET_STANDALONE": " "}
    assert replace(read(["train.py"], environment), script="") == Arguments()


@pytest.mark.parametrize(
    ("variable", "text", "what"),
    [
        ("PET_NNODES", "many", f"PET_NNODES: {flag_words.bad_node_counts('many')}"),
        ("PET_STANDALONE", "maybe", f"PET_STANDALONE: {SAY.not_a_switch('maybe')}"),
        ("PET_RDZV_CONF", "join_timeout", f"PET_RDZV_CONF: {SAY.not_pairs('join_timeout')}"),
        ("PET_RDZV_ENDPOINT", "host:x", "PET_RDZV_ENDPOINT: 'host:x' is not HOST:PORT"),
        ("PET_TOKEN_FILE", "/nowhere", "PET_TOKEN_FILE /nowhere: No such file or directory"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon", f"TORCH_ELASTIC_SHUTDOWN_TIMEOUT: {a_time('soon')}"),
    ],
)
def test_a_bad_value_of_a_variable_is_reported_with_its_name(variable, text, what):
    assert complaint("train.py", environment={variable: text}).startswith(what)


# Keys of --rdzv-conf.


def conf(text: str, **given: str) -> Arguments:
    return make({"rdzv_conf": ("--rdzv-conf", text)} | {name: ("--x", value) for name, value in given.items()})


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("last_call_timeout=5", {"asked": RequestedSettings(last_call_timeout_s=5.0)}),
        ("close_timeout=5", {"close_timeout": 5.0}),
        ("read_timeout=5", {"read_timeout": 5.0}),
        ("cas_backoff_max_seconds=0.5", {"cas_backoff_max_seconds": 0.5}),
        ("is_host=0", {"is_host": False}),
        ("", {}),
        (" join_timeout = 5 , is_host=1 ", {"asked": RequestedSettings(join_timeout_s=5.0), "is_host": True}),
        ("'join_timeout=5'", {"asked": RequestedSettings(join_timeout_s=5.0)}),
        ('"join_timeout=5,is_host=true"', {"asked": RequestedSettings(join_timeout_s=5.0), "is_host": True}),
        ("node_id=a,token_file=b", {"node_id": "a", "token_file": "b"}),
        ("node-id=a,connect-timeout=5", {"node_id": "a", "connect_timeout": 5.0}),
        ("no-such=5", {"ignored": ("no-such",)}),
        (
            "store_type=file,join_timeout=5,a=b=c",
            {"asked": RequestedSettings(join_timeout_s=5.0), "ignored": ("store_type", "a")},
        ),
    ],
)
def test_meaning_of_a_setting(text, means):
    found = conf(text)
    assert found == Arguments(rdzv_conf=found.rdzv_conf, sources=found.sources, **means)


@pytest.mark.parametrize(
    ("text", "given", "join_timeout_s", "lease_s"),
    [
        ("join_timeout=5", {"join_timeout": "6"}, 6.0, None),  # a flag takes precedence over a setting
        ("timeout=5", {}, 5.0, None),
        ("timeout=5", {"rdzv_backend": "c10d"}, None, None),  # this backend has no setting of that name
        ("timeout=5,join_timeout=6", {}, 6.0, None),
        ("keep_alive_interval=2", {}, None, 6.0),
        ("keep_alive_max_attempt=2", {}, None, 10.0),
        ("keep_alive_interval=0.5,keep_alive_max_attempt=4", {}, None, 2.0),
        ("keep_alive_interval=0.5,lease=3", {}, None, 3.0),
    ],
)
def test_meaning_of_a_setting_for_the_run(text, given, join_timeout_s, lease_s):
    found = settings(conf(text, **given))
    assert (found.join_timeout_s, found.lease_s) == (join_timeout_s, lease_s)


KEYS = {
    "timeout": "x",
    "read_timeout": "1e9",
    "close_timeout": "nan",
    "keep_alive_interval": "often",
    "keep_alive_max_attempt": "0",
    "is_host": "perhaps",
    "cas_backoff_max_seconds": "x",
}


def test_every_key_that_is_not_a_flag_has_a_bad_value_here():
    assert KEYS.keys() == {key for key in SETTINGS if key not in FLAGS}


@pytest.mark.parametrize("key", KEYS)
def test_a_bad_value_is_refused_by_its_key(key):
    with pytest.raises(UsageError, match=rf"^--rdzv-conf: {key}: .*, not '{KEYS[key]}'$"):
        conf(f"{key}={KEYS[key]}")


@pytest.mark.torch
@pytest.mark.parametrize("text", ["join_timeout", "join_timeout=", "=5", "a=1,", "a=1,,b=2"])
def test_a_text_that_is_not_a_setting_is_refused_here_and_under_torchrun(text):
    with pytest.raises(UsageError, match=f"^--rdzv-conf: {pattern(SAY.not_pairs)}"):
        conf(text)
    utils = pytest.importorskip("torch.distributed.elastic.rendezvous.utils")
    with pytest.raises(ValueError):
        utils._parse_rendezvous_config(text)


@pytest.mark.parametrize("text", ["keep_alive_interval=0", "keep_alive_interval=100000,keep_alive_max_attempt=9"])
def test_a_lease_out_of_bounds(text):
    line = words.plan.lease_out_of_bounds("--rdzv-conf", 0.1, 86_400, 0 if text.endswith("=0") else 900_000)
    with pytest.raises(UsageError, match=f"^{re.escape(line)}$"):
        settings(conf(text))


# Values.


@pytest.mark.parametrize(
    ("read", "texts", "value"),
    [
        (values.switch, ["1", "true", "True", "YES", "on", "t", "y", "2", " 1 "], True),
        (values.switch, ["0", "false", "No", "OFF", "f", "n", "00"], False),
        (values.seconds(), ["2.5"], 2.5),
        (values.ranks, ["", "  "], None),
        (values.ranks, ["0,2, 11"], {0, 2, 11}),
        (values.streams, ["0:1,12:3"], {0: Std.OUT, 12: Std.ALL}),  # torch's ranks have one digit
        (values.nodes, ["8,32,16", "8, 16,32,8"], values.Nodes(8, 32, (8, 16, 32))),
        (values.nodes, ["8:32", (8, 32)], values.Nodes(8, 32)),
        (values.filters, [""], ()),
        (values.filters, ["a,"], ("a", "")),  # which every line passes
        (values.template, ["[${role_name}${rank}/${local_rank} $$] "], "[${role_name}${rank}/${local_rank} $$] "),
        (values.signals, ["SIGTERM, SIGUSR1,SIGTERM"], ("SIGTERM", "SIGUSR1")),
    ],
)
def test_a_valid_value_is_read(read, texts, value):
    assert [read(text) for text in texts] == [value] * len(texts)


@pytest.mark.parametrize(
    ("read", "texts", "line"),
    [
        (values.switch, ["", "maybe", "1.0", "yess"], pattern(SAY.not_a_switch)),
        (values.nodes, ["8,", "8,a", "0,8", "2:4,8", ",", "-1,2", "8,100001"], pattern(SAY.not_sizes)),
        (values.nodes, [",".join(map(str, range(1, 40)))], pattern(SAY.too_many_sizes, sizes=39, most=32)),
        (node_counts, ["2:", ":2", "", "a", "1:2:3", "0", "3:1", "-1"], "nodes|MIN"),
        (values.seconds(), ["nan", "inf", "-1", "", "1s", "1e7"], pattern(SAY.not_seconds, low=0, high=10**6)),
        (values.ranks, ["a", "0,", "-1", "0;1"], pattern(SAY.not_ranks)),
        (values.template, ["$"], pattern(SAY.not_a_template, names=PREFIX_NAMES)),
        (values.signals, ["SIGTERM,SIGSTOP"], pattern(SAY.signal_uncatchable, name="SIGSTOP")),
    ],
)
def test_an_invalid_value_is_refused_with_its_message(read, texts, line):
    for text in texts:
        with pytest.raises(ValueError, match=line):
            read(text)


def test_names_that_no_signal_has():
    assert values.known_signals(values.signals("SIGTERM,SIGNOPE,99,SIGBREAK,")) == ("SIGTERM",)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("SIGTEM", "SIGTERM"),
        ("SIGINT,TERM", "SIGTERM"),
        ("sigusr1", "SIGUSR1"),
        ("USR2", "SIGUSR2"),
        ("SIGINT,15", "SIGTERM"),
        ("SIGTERM;SIGUSR1", "SIGTERM,SIGUSR1"),
        ("SIGTERM:SIGINT", "SIGTERM,SIGINT"),
        ("signal.SIGTERM", "SIGTERM"),
        ("SIGTERMINATE", "SIGTERM"),
    ],
)
def test_a_misspelt_signal_is_refused_for_it_would_kill_the_agent(given, meant):
    line = SAY.no_such_signal(given.rpartition(",")[2], f"; did you mean {meant}?")
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        values.signals(given)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["0", "1", "2", "3", "0:1", "0:3,1:0,2:1,3:2", "9:3,9:1"])
def test_streams_are_read_as_torch_reads_them(text):
    multiprocessing = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    assert values.streams(text) == multiprocessing.Std.from_str(text)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["", "4", "-1", "03", "a", "0:4", "0:1,", ",0:1", "0:1:2", "a:1", "-1:1", "0: 1"])
def test_streams_that_torch_refuses_are_refused(text):
    multiprocessing = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    for from_text in (multiprocessing.Std.from_str, values.streams):
        with pytest.raises(ValueError):
            from_text(text)


@pytest.mark.torch
@pytest.mark.parametrize("text", ["apple,orange", "a,,b", "a,,b,c", "one", "x,,,y", "a,"])
def test_filters_are_read_as_torch_reads_them(text):
    from torch.distributed.run import get_args_parser

    args = get_args_parser().parse_args(["--duplicate-stdout-filters", text, "train.py"])
    assert list(values.filters(text)) == args.duplicate_stdout_filters


# Mistakes, and what the user probably meant.


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nproc", "hello.py"], words.cli.script_taken_for_value("--nproc", "N", "hello.py")),
        (["--nproc", "2"], words.cli.see_help(words.cli.NO_SCRIPT)),
        (["--hlep"], words.cli.unknown_argument("--hlep", "; did you mean --help?")),
        (["python", "hello.py"], words.command.script_is_python("python")),
        (["-m", "nosuch.train"], words.command.no_module("nosuch", "")[:-1]),
        (["--no-python", "run.sh"], words.command.program_not_in_path("run.sh")),
        (["--nproc", "2", "--virtual-local-rank", "train.py"],
         words.plan.too_few_gpus("--virtual-local-rank", 2, "CUDA_VISIBLE_DEVICES", "", 0)),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_the_correct_command(argv, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    assert says in complaint(*argv, environment={"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize(
    ("argv", "environment", "note"),
    [
        (
            ["--rdzv-conf", "join_timout=5"],
            {},
            words.cli.unknown_keys("--rdzv-conf", ["join_timout"], "; did you mean join_timeout?"),
        ),
        (
            ["--rdzv-conf", "max_restarts=5"],
            {},
            words.cli.unknown_keys("--rdzv-conf", ["max_restarts"], words.cli.key_is_a_flag("--max-restarts")),
        ),
        (
            ["--notice-timeout", "60"],
            {},
            notices.shortened("--notice-timeout", 60.0, 24.0, 30.0, enough_s=75.0),
        ),
        (
            [],
            {"PET_MAX_RESTART": "3"},
            words.cli.misspelt_variable("PET_MAX_RESTART", "; did you mean PET_MAX_RESTARTS?"),
        ),
        (
            [],
            {"TORCHELASTIC_HEALTH_CHECK_PORT": "8080"},
            words.plan.no_health_check("TORCHELASTIC_HEALTH_CHECK_PORT"),
        ),
        ([], {"PET_NNODE": "3"}, words.cli.misspelt_variable("PET_NNODE", "; did you mean PET_NNODES?")),
        (
            [],
            {"SLURM_STEP_NUM_NODES": "4"},
            words.rendezvous.several_nodes("SLURM_STEP_NUM_NODES", "4", is_of_a_scheduler=True),
        ),
        (["--scale-up-cooldown", "9"], {}, words.plan.cooldown_alone("--scale-up-cooldown")),
        (["--on-hang", "restart"], {}, hangs.detects_no_hangs(["--on-hang"])),
        (
            ["--max-hang-restarts", "2"],
            {"PET_ON_HANG": "fail"},
            hangs.detects_no_hangs(["PET_ON_HANG", "--max-hang-restarts"]),
        ),
    ],
    ids=[
        *("a key", "key of a flag", "a limit", "a variable", "torch's variable", "another variable", "a scheduler"),
        *("a cooldown alone", "what follows no hang", "two flags of no hang"),
    ],
)
def test_values_with_less_effect_are_reported_with_advice(argv, environment, note, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert any(note in each for each in plan(*argv, "train.py", **environment).notes)


@pytest.mark.parametrize("detection", ["--silence-timeout=60", "--progress-timeout=auto", "--log-rule=fault: x", ""])
def test_what_follows_a_hang_is_not_reported_if_hangs_are_detected(detection, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    variables = {} if detection else {"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "60"}
    flags = (detection,) if detection else ()
    assert plan("--on-hang=fail", *flags, "train.py", **variables).notes == ()


def test_a_cooldown_with_its_policy_is_not_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert plan("--scale-up=cooldown", "--scale-up-cooldown=9", "train.py").notes == ()


def test_a_variable_of_another_program_is_not_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    others = {"PET_SHOP": "1", "PET_MAX_RESTART": " ", "PET_MASTER_HOST": "h", "PETS_NNODES": "2"}
    assert plan("--nnodes=1", "train.py", **others, PET_START_METHOD="spawn", PET_LOGS_SPECS="x").notes == ()
