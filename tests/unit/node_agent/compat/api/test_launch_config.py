"""`LaunchConfig`: torch's fields, and their effect on the agent."""

import os
from dataclasses import MISSING, fields
from pathlib import Path
from re import escape
from ssl import SSLError
from typing import Any

import pytest
from rdzv_protocol.words import tls as tls_words

from node_agent import DefaultLogsSpecs, LaunchConfig, Std, elastic_launch, words
from node_agent.cli.arguments import FLAGS, SETTINGS
from node_agent.cli.command_line import read
from node_agent.compat.api.children import START_METHODS
from node_agent.compat.api.launch_config import Plan, arguments_of, as_ours, make_plan
from node_agent.features.event_log import EventLog
from node_agent.features.hangs import Hangs
from node_agent.features.numa import MODES, NumaBinding
from node_agent.flags import BACKENDS, PLACES
from node_agent.kernel.config import AgentConfig, UsageError
from tests.support.cases import case
from tests.support.message_search import pattern
from tests.unit.node_agent.cli.test_arguments import GOOD

SAY = words.values


def plan(*nodes_and_workers: int, **given: Any) -> Plan:
    return make_plan(LaunchConfig(*(nodes_and_workers or (1, 1, 2)), **given), "train")


def agent(*nodes_and_workers: int, **given: Any) -> AgentConfig:
    return plan(*nodes_and_workers, **given).launch.config


@pytest.mark.torch
def test_fields_and_defaults_are_torchs() -> None:
    theirs = pytest.importorskip("torch.distributed.launcher.api").LaunchConfig

    def described(config: Any) -> list[tuple[str, Any]]:
        return [
            (field.name, field.default if field.default_factory is MISSING else field.default_factory())
            for field in fields(config)
        ]

    assert described(LaunchConfig) == [*described(theirs), ("exit_barrier_timeout", None)]  # proposed for torch


@pytest.mark.torch
def test_torchs_own_object_is_understood() -> None:
    theirs = pytest.importorskip("torch.distributed.launcher.api").LaunchConfig
    given: dict[str, Any] = {"run_id": "nightly", "rdzv_backend": "c10d", "rdzv_configs": {"is_host": False}}
    ours = as_ours(theirs(1, 2, 3, rdzv_endpoint="host:1", max_restarts=5, **given))
    config = make_plan(ours, "train").launch.config
    assert (config.join.run_id, config.join.local_world_size, config.join.settings.max_nodes) == ("nightly", 3, 2)
    assert config.join.settings.max_restarts == 5


def test_an_object_that_is_not_a_configuration_is_refused() -> None:
    with pytest.raises(TypeError, match=escape(words.api.not_launch_config("--nnodes 1"))):
        as_ours("--nnodes 1")


def test_by_default_a_run_has_only_this_node() -> None:
    made = plan()
    config = made.launch.config
    assert made.launch.target.endpoint is None
    assert (config.join.local_world_size, config.join.role, config.command.title) == (2, "default_role", "train")
    assert (config.join.settings.max_restarts, config.shutdown_timeout_s) == (3, 30)
    assert (config.signals, config.program_signals) == ((), ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"))


def test_every_field_reaches_the_agent(tmp_path: Path) -> None:
    made = plan(
        1, 4, 8, logs_specs=DefaultLogsSpecs(tmp_path, {0: Std.OUT}, Std.ERR, {1}),
        run_id="nightly", role="trainer", rdzv_endpoint="host:1234", rdzv_backend="c10d",
        rdzv_configs={"join_timeout": 5, "last_call_timeout": "6", "keep_alive_interval": 2,
                      "keep_alive_max_attempt": 4, "is_host": False, "node_id": "a", "scale_up": "manual",
                      "fatal_exit_codes": [3, -9], "disconnect_grace": 2},
        local_addr="10.0.0.1", event_log_handler="console", signals_to_handle="SIGUSR1",
        duplicate_stdout_filters=["a,b", "c"], duplicate_stderr_filters=["d"], shutdown_timeout=7,
        log_line_prefix_template="<${rank}>",
    )  # fmt: skip
    config = made.launch.config
    join, settings, logs = config.join, config.join.settings, config.logs
    assert made.launch.target.endpoint == ("host", 1234) and not made.launch.target.hosts
    assert (join.run_id, join.role, join.node_id, join.addr) == ("nightly", "trainer", "a", "10.0.0.1")
    assert (settings.min_nodes, settings.max_nodes, settings.scale_up) == (1, 4, "manual")
    assert (settings.join_timeout_s, settings.last_call_timeout_s, settings.lease_s) == (5, 6, 8)
    assert (settings.disconnect_grace_s, settings.fatal_exit_codes) == (2, (3, -9))
    assert (logs.log_dir, logs.redirects, logs.tee) == (str(tmp_path), {0: Std.OUT}, Std.ERR)
    assert (logs.local_ranks, logs.stdout_filters, logs.stderr_filters) == (frozenset({1}), ("a,b", "c"), ("d",))
    assert config.options(EventLog).event_log_handler == "console"
    assert (config.shutdown_timeout_s, config.program_signals) == (7, ("SIGUSR1",))
    assert config.environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] == "<${rank}>"
    assert config.environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("key", ["rank", "node_rank"])
def test_a_node_may_ask_for_its_rank(key: str) -> None:
    made = plan(2, 2, 1, rdzv_endpoint="h:1", rdzv_backend="rdzv-server", rdzv_configs={key: 1})
    assert (made.launch.config.join.node_rank, made.launch.notes) == (1, ())


def test_every_flag_of_ours_is_a_key_a_variable_and_an_option_of_rdzv_conf(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in SETTINGS.keys() & FLAGS.keys():
        with case(key), monkeypatch.context() as patch:
            check_key(key, patch)


def check_key(key: str, patch: pytest.MonkeyPatch) -> None:
    flag, text = FLAGS[key], GOOD[key]
    value = flag.read(text)
    if "," not in text and text == text.strip():
        assert read([f"--rdzv-conf={key}={text}", "train.py"], {}).value(key) == value
    if flag.is_commands:
        with pytest.raises(UsageError, match=f"^{pattern(words.api.only_for_the_program, key=key)}$"):
            arguments_of(LaunchConfig(1, 1, 1, rdzv_configs={key: text}), DefaultLogsSpecs())
        return
    given = arguments_of(LaunchConfig(1, 1, 1, rdzv_configs={key: text}), DefaultLogsSpecs())
    assert (given.value(key), given.ignored) == (value, ())
    if flag.is_ours and not flag.variable:
        patch.setenv(flag.variables[0], text)
        assert arguments_of(LaunchConfig(1, 1, 1), DefaultLogsSpecs()).value(key) == (
            None if key == "log_line_prefix_template" else value
        )


def test_a_programs_value_takes_precedence_over_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_SILENCE_TIMEOUT", "600")
    assert agent().options(Hangs).silence_timeout == 600
    assert agent(rdzv_configs={"silence_timeout": 60}).options(Hangs).silence_timeout == 60


@pytest.mark.parametrize("key", ["endpoint", "run_id", "nproc"])
def test_a_key_of_ours_that_is_a_field_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=rf"^rdzv_configs: {key}: use (rdzv_endpoint|run_id|nproc_per_node) instead$"):
        plan(rdzv_configs={key: "x"})


def test_one_static_node_has_the_place_that_it_asks_for(unused_tcp_port: int) -> None:
    asked = {"master_addr": "127.0.0.9", "master_port": unused_tcp_port}
    made = plan(rdzv_backend="static", rdzv_configs=asked).launch
    assert (made.target.local_addr, made.config.master_port) == ("127.0.0.9", unused_tcp_port)


def test_a_schedulers_variables_decide_where_nodes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29400"}.items():
        monkeypatch.setenv(name, value)
    made = plan(2, 2, 3, rdzv_endpoint="auto").launch
    assert (made.target.endpoint, made.target.hosts) == (("192.0.2.1", 29400), False)
    assert (made.config.join.local_world_size, made.config.join.run_id) == (3, "192.0.2.1")


@pytest.mark.torch
def test_torchs_logs_specs_are_understood(tmp_path: Path) -> None:
    theirs = pytest.importorskip("torch.distributed.elastic.multiprocessing")
    specs = theirs.DefaultLogsSpecs(str(tmp_path), theirs.Std.OUT, {1: theirs.Std.ALL}, {0})
    logs = agent(logs_specs=specs).logs
    assert (logs.log_dir, logs.redirects) == (str(tmp_path), Std.OUT)
    assert (logs.tee, logs.local_ranks) == ({1: Std.ALL}, frozenset({0}))


@pytest.mark.torch
def test_torchs_numa_options_are_understood() -> None:
    theirs = pytest.importorskip("torch.numa.binding")
    options = theirs.NumaOptions(theirs.AffinityMode.NODE, should_fall_back_if_binding_fails=True)
    assert not agent(1, 1, 100, numa_options=options).options(NumaBinding).is_on, "no machine has as many GPUs"
    with pytest.raises(ValueError, match=r"^numa_options: "):
        agent(1, 1, 100, numa_options=theirs.NumaOptions(theirs.AffinityMode.NODE))


@pytest.mark.parametrize("endpoint", ["", None, "localhost:0", "0.0.0.0:0"])
@pytest.mark.parametrize("backend", ["etcd", "c10d", "static", "rdzv-server"])
def test_one_node_without_a_port_needs_no_server(backend: str, endpoint: Any) -> None:
    assert plan(rdzv_backend=backend, rdzv_endpoint=endpoint).launch.target.endpoint is None


def test_variables_of_torchruns_flags_do_not_affect_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PET_NNODES": "7", "PET_ROLE": "other", "PET_STANDALONE": "1"}.items():
        monkeypatch.setenv(name, value)
    config = agent(2, 2, 1, rdzv_endpoint="host:1")
    assert (config.join.settings.max_nodes, config.join.role) == (2, "default_role")
    assert config.environment["PET_ROLE"] == "other", "workers inherit it all the same"


def test_the_shutdown_timeout_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")
    assert LaunchConfig(1, 1, 1).shutdown_timeout == 5
    assert LaunchConfig(1, 1, 1, shutdown_timeout=6).shutdown_timeout == 6


def test_fields_without_effect_in_torch_have_no_effect_here() -> None:
    assert agent(metrics_cfg={"a": "b"}, exit_barrier_timeout=5.0).join.settings == agent().join.settings


def test_logs_specs_are_there_without_being_given() -> None:
    assert LaunchConfig(1, 1, 1).logs_specs == DefaultLogsSpecs()


def test_the_older_name_of_the_timeout() -> None:
    assert LaunchConfig(1, 1, 1, rdzv_timeout=60).rdzv_configs == {"timeout": 60}


def test_a_program_names_its_run() -> None:
    assert agent(run_id="mine").join.run_id == "mine"
    assert agent().join.run_id != agent().join.run_id


def test_a_server_that_speaks_tls() -> None:
    made = plan(1, 2, 1, rdzv_endpoint="h:1", rdzv_backend="rdzv-server", rdzv_configs={"tls_ca": "system"})
    tls = made.launch.credentials.tls
    assert tls and tls.ca == "system"
    refusal = SSLError()
    refusal.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert tls.explain(refusal, "h") == tls_words.asks_for_certificate("tls_cert", "tls_key")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"rdzv_backend": "zeus", "rdzv_endpoint": "h:1"},
         f"rdzv_backend: {SAY.not_one_of(BACKENDS, 'zeus')}"),
        ({"rdzv_endpoint": "h:99999"}, "rdzv_endpoint: 'h:99999' is not HOST:PORT"),
        ({"min_nodes": 3, "max_nodes": 2, "rdzv_endpoint": "h:1"}, "min_nodes, max_nodes: 3:2: MIN is above MAX"),
        ({"min_nodes": 2, "max_nodes": 2}, words.rendezvous.no_endpoint("rdzv_backend", "etcd", "rdzv_endpoint")),
        ({"nproc_per_node": 0}, f"nproc_per_node: {SAY.not_a_whole_number(1, 4096, 0, PLACES)}"),
        ({"max_restarts": -1}, f"max_restarts: {SAY.not_a_whole_number(0, 10**7, -1)}"),
        ({"run_id": "a\n"}, f"run_id: {SAY.not_a_name(given='a' + chr(10))}"),
        ({"role": "x" * 129}, f"role: {SAY.not_a_name('x' * 129)}"),
        ({"start_method": "thread"}, words.api.not_a_start_method(START_METHODS, "thread")),
        ({"monitor_interval": 0}, words.api.not_seconds_above_0("monitor_interval", 0)),
        ({"event_log_handler": "kafka"}, f"event_log_handler: {SAY.not_one_of(('null', 'console'), 'kafka')}"),
        ({"signals_to_handle": "SIGKILL"}, f"signals_to_handle: {SAY.signal_uncatchable('SIGKILL')}"),
        ({"numa_options": "moon"}, words.api.not_numa_options(MODES, "moon")),
        ({"rdzv_endpoint": "h:1", "rdzv_configs": {"join_timeout": "soon"}},
         f"rdzv_configs: join_timeout: {SAY.not_seconds(0, 10**6, 'soon')}"),
        ({"rdzv_configs": {"lease": 10**400}},
         f"rdzv_configs: lease: {SAY.not_seconds(0.1, 86_400, 10**400)}"),
        ({"rdzv_configs": {"lease": 0}}, f"rdzv_configs: lease: {SAY.not_seconds(0.1, 86_400, 0)}"),
        ({"rdzv_endpoint": "h:1", "rdzv_configs": {"tls_ca": "/nowhere"}},
         "rdzv_configs: tls_ca /nowhere: No such file or directory"),
        ({"rdzv_endpoint": "h:1", "rdzv_configs": {"tls_ca": __file__}},
         "rdzv_configs: " + tls_words.bad_file("tls_ca", __file__, tls_words.NO_CERTIFICATE)),
        ({"rdzv_endpoint": "h:1", "rdzv_configs": {"tls_ca": "system", "tls_cert": "/c", "tls_key": "/k"}},
         "rdzv_configs: tls_cert /c: No such file or directory"),
        ({"shutdown_timeout": -1}, words.api.not_seconds("shutdown_timeout", -1)),
    ],
)  # fmt: skip
def test_invalid_values_are_refused_in_one_line_that_names_the_field(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{escape(line)}") as caught:
        elastic_launch(LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, **given}), print)()
    assert "\n" not in str(caught.value) and "--" not in str(caught.value)


def test_logs_specs_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(TypeError, match=f"^{pattern(words.api.not_logs_specs, given=42)}$"):
        agent(logs_specs=42)


def test_a_log_dir_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = words.api.log_dir_is_a_file(tmp_path / "file", "/dev/null")
    with pytest.raises(NotADirectoryError, match=f"^{escape(line)}$"):
        DefaultLogsSpecs(tmp_path / "file")
