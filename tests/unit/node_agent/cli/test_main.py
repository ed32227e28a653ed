"""Meaning of the command line, and what the program does with it."""

import errno
import os
import signal
import subprocess
import sys
from operator import attrgetter

import pytest
import rdzv_protocol
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.log_lines import LineFormat
from rdzv_protocol.messages import JoinRequest
from rdzv_protocol.settings import RequestedSettings
from rdzv_protocol.words import flags as flag_words

from node_agent import words
from node_agent.cli import main
from node_agent.cli.plan import SAME_NAMES
from node_agent.features.checks import words as checks
from node_agent.features.free_gpus import DRIVER
from node_agent.features.hangs.progress_source import ProgressLimits
from node_agent.features.hangs.rule_source import LogRule
from node_agent.features.notices import words as notices
from node_agent.features.numa import NumaBinding
from node_agent.features.preemption import words as preemption
from node_agent.features.table import OPTIONS
from node_agent.flags import PLACES
from node_agent.kernel.config import AgentConfig, LaunchPlan, UsageError
from node_agent.kernel.core.command import Command
from node_agent.kernel.core.log_options import LogOptions, Std
from tests.support.cases import case
from tests.unit.node_agent.command_lines import complaint, plan


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("PET_", "TORCH_ELASTIC_", "PYTHON_EXEC"))]:
        monkeypatch.delenv(name)


def config(*argv: str, **environment: str) -> AgentConfig:
    return plan(*argv, "train.py", **environment).config


# fmt: off
LANDS = [  # the fields of an agent, its run and its output, by the flags that set them
    ("join.local_world_size", 8, ["--nproc", "8"]),
    ("join.local_world_size", len(os.sched_getaffinity(0)), ["--nproc", "cpu"]),
    ("preload", ("torch", "torch.distributed"), ["--preload", "torch, torch.distributed"]),
    ("join.run_id", "nightly", ["--endpoint", "host:1", "--run-id", "nightly"]),
    ("join.explicit_run_id", True, ["--endpoint", "host:1", "--run-id", "nightly"]),
    ("join.explicit_run_id", False, ["--endpoint", "host:1", "--rdzv-id", "none"]),
    ("join.rerun", True, ["--rerun"]),
    ("join.node_id", "n7", ["--node-id", "n7"]),
    ("join.role", "trainer", ["--role", "trainer"]),
    ("join.watches", ("progress", "silence"), ["--silence-timeout", "60", "--progress-timeout", "auto"]),
    ("join.node_rank", 3, ["--endpoint", "host:1", "--node-rank", "3"]),
    ("join.preferred_rank", 3, ["--rdzv-backend=c10d", "--rdzv-endpoint=192.0.2.1", "--nnodes=4", "--node-rank=3"]),
    ("join.sort_key", "rack00000007.n00000012", ["--topology", "rack7.n12"]),
    ("join.sort_key", "", ["--node-rank", "0"]),  # and what a scheduler gives: see test_schedulers
    ("worker_variables", {}, []),
    ("join.addr", "10.0.0.7", ["--local-addr", "10.0.0.7"]),
    ("join.addr", "", ["--local-addr", ""]),
    ("master_port", None, []),
    ("virtual_local_rank", True, ["--virtual-local-rank"]),
    ("numa_binding", None, []),
    ("cpus", (), []),
    ("gpu_free_timeout", 60.0, ["--gpu-free-timeout", "60"]),
    ("has_driver", os.path.exists(DRIVER), []),
    ("signals", ("SIGTERM", "SIGUSR1"), ["--signals-to-handle", "SIGTERM,SIGUSR1"]),
    ("shutdown_timeout_s", 2.5, ["--shutdown-timeout", "2.5"]),
    ("connect_timeout_s", 7.0, ["--connect-timeout", "7"]),
    ("servers", (("host", 1), ("host", 2)), ["--endpoint", "host:1,host:2"]),
    ("connect_timeout_s", 8.0, ["--rdzv-conf", "read_timeout=8"]),
    ("connect_timeout_s", 7.0, ["--rdzv-conf", "read_timeout=8", "--connect-timeout", "7"]),
    ("server_lost_timeout_s", 9.0, ["--server-lost-timeout", "9"]),
    ("notice_timeout", 20.0, ["--notice-timeout", "20"]),
    ("notice_s", 20.0, ["--notice-timeout", "20"]),
    ("notice_s", 24.0, ["--notice-timeout", "60"]),
    ("notice_s", 60.0, ["--notice-timeout", "60", "--shutdown-timeout", "75"]),
    ("notice_signal", "SIGUSR2", ["--notice-timeout", "20", "--notice-signal", "SIGUSR2"]),
    ("gives_notices", True, ["--notice-timeout", "20"]),
    ("gives_notices", True, ["--scale-up", "on-notice"]),
    ("preemption_file", "preempted", ["--preemption-file", "preempted"]),
    ("preemption_annotations", "annotations", ["--preemption-annotations", "annotations"]),
    ("tell_scheduler", ("slurm", "", ""), ["--tell-scheduler", "slurm"]),
    ("tell_scheduler", ("kubernetes", "job", "train"), ["--tell-scheduler", "kubernetes=job/train"]),
    ("preemption_poll", ("gcp", ""), ["--preemption-poll", "gcp"]),
    ("preemption_poll", ("aws", "http://127.0.0.1:80"), ["--preemption-poll", "aws=http://127.0.0.1:80"]),
    ("close_timeout_s", 5.0, ["--rdzv-conf", "close_timeout=5"]),
    ("metrics_port", ("127.0.0.1", 9400), ["--metrics-port", "9400"]),
    ("metrics_port", ("::", 0), ["--metrics-port", "[::]:0"]),
    ("ready_file", "/tmp/ready", ["--ready-file", "/tmp/ready"]),
    ("check", {}, []),
    ("check_only", False, []),
    ("exits_when_excluded", True, ["--exit-when-excluded"]),
    ("exits_with_run", True, ["--exit-with-run"]),
    ("check", {"disk": 20, "shm": None}, ["--check", "disk=20,shm"]),
    ("pre_join_check", "exit 0", ["--pre-join-check", "exit 0"]),
    ("pre_join_check_timeout", 9.0, ["--pre-join-check", "exit 0", "--pre-join-check-timeout", "9"]),
    ("folder", "logs", ["--check", "disk", "--log-dir", "logs"]),
    ("folder", "", ["--check", "disk", "--log-dir", "/dev/null"]),
    ("server", ("host", 1), ["--check", "clock", "--endpoint", "host:1"]),
    ("server", None, ["--check", "clock"]),
    ("tls", None, ["--check", "clock"]),
    ("status_page", False, ["--no-status-page"]),
    ("allow_log_reads", True, ["--allow-log-reads"]),
    ("lines", LineFormat("node-agent", is_json=True), ["--log-format", "json"]),
    ("otel", True, ["--otel"]),
    ("backend", "c10d", ["--standalone"]),
    ("backend", "static", ["--rdzv-endpoint", "localhost:0"]),
    ("backend", "etcd", ["--rdzv-backend", "etcd", "--rdzv-endpoint", "host:1"]),
    ("backend", "rdzv-server", ["--endpoint", "host:1"]),
    ("event_log_handler", "console", ["--event-log-handler", "console"]),
    ("command", Command((sys.executable, "-u", "train.py"), name="train.py"), []),
    ("stdin", -1, []),  # `main` reads it from stdin
    ("join.settings", RequestedSettings(min_nodes=1, max_nodes=1, max_restarts=1), ["--max-restarts", "1"]),
    ("logs", LogOptions(tee=Std.ALL), ["--tee", "3"]),
    ("environment", {"PATH": "/usr/bin:/bin", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGHUP"}, ["--signals", "SIGHUP"]),

    *((f"join.settings.{name}", value, ["--endpoint", "host:1", *flags]) for name, value, flags in [
        ("min_nodes", 2, ["--nnodes", "2:4"]),
        ("max_nodes", 4, ["--nnodes", "2:4"]),
        ("min_nodes", 3, ["--nnodes", "3"]),
        ("max_nodes", 3, ["--nnodes", "3"]),
        ("legal_sizes", (8, 16, 32), ["--nnodes", "8,32,16"]),
        ("max_nodes", 32, ["--nnodes", "8,32,16"]),
        ("node_unit", 4, ["--nnodes", "4:16", "--node-unit", "4"]),
        ("fixed_nodes", None, ["--standalone", "--fixed-nodes", "4"]),
        ("join_timeout_s", 61.0, ["--rdzv-conf", "join_timeout=61"]),
        ("join_timeout_s", 60.0, ["--rdzv-conf", "timeout=61", "--join-timeout", "60"]),
        ("last_call_timeout_s", 0.0, ["--last-call-timeout", "0"]),
        ("straggler_factor", 2.0, ["--rdzv-conf", "straggler_factor=2"]),
    ]),

    ("fatal_rule", ("bad, record", "x"), ["--fatal-rule", "bad, record", "--fatal-rule=x"]),
    ("retry_rule", ("store",), ["--retry-rule", "store"]),
    ("progress_timeout", None, []),
    ("progress_timeout", ProgressLimits(), ["--progress-timeout", "auto"]),
    (
        "progress_timeout",
        ProgressLimits(start_s=9, step_s=9, checkpoint_s=9, preparation_s=600),
        ["--progress-timeout", "9"],
    ),
    ("progress_timeout", ProgressLimits(step_s=9, factor=3), ["--progress-timeout", "step=9,factor=3"]),
    ("progress_timeout", ProgressLimits(unseen_s=60), ["--progress-timeout", "unseen=60"]),
    ("silence_timeout", 60, ["--silence-timeout", "60"]),
    ("uninterruptible_s", None, []),
    ("log_rule", (LogRule(pattern="NaN", is_fault=True), LogRule(pattern=r"loss: (\S+)", most=9.0, points=3)),
     ["--log-rule", "fault: NaN", "--log-rule", r"most=9,points=3: loss: (\S+)"]),
    ("logs.log_dir", "logs", ["--log-dir", "logs"]),
    ("logs.log_dir", "/dev/null", ["--log-dir", "/dev/null"]),
    ("logs.log_dir", None, ["--log-dir", ""]),
    ("logs.redirects", Std.OUT, ["-r", "1"]),
    ("logs.redirects", {0: Std.ALL}, ["-r0:3"]),
    ("logs.tee", {0: Std.OUT, 12: Std.ALL}, ["-t", "0:1,12:3"]),
    ("logs.local_ranks", {0, 2}, ["--local-ranks-filter", "0,2"]),
    ("logs.local_ranks", None, ["--local-ranks-filter", ""]),
    ("logs.ranks", {9}, ["--ranks-filter", "9"]),
    ("logs.stdout_filters", ("a", "b,c"), ["--duplicate-stdout-filters", "a,b,,c"]),
    ("logs.stderr_filters", ("d",), ["--duplicate_stderr_filters=d"]),
    ("logs.prefix", "[${rank}] ", ["--log-prefix", "[${rank}] "]),
    ("logs.plugin", None, []),
]
# fmt: on
WITHOUT_A_FLAG = {"scale_up_window_s"}
THE_AGENTS_OWN = {"attempt", "agent_id", "secret", "command", "program", "after_round", "port", "returning", "unfit"}
THE_AGENTS_OWN |= {"hosts_store", "drains", "queries", "log_dir", "content", "folder"}


def test_every_setting_of_an_agent_has_a_case_here():
    parts = [("", AgentConfig), ("join.", JoinRequest), ("join.settings.", RequestedSettings), ("logs.", LogOptions)]
    parts += [("", kind) for kind in OPTIONS]
    known = {f"{prefix}{name}" for prefix, kind in parts for name in kind.__struct_fields__}
    settings = {f"join.settings.{name}" for name in WITHOUT_A_FLAG | SAME_NAMES.keys()}
    others = {f"join.{name}" for name in THE_AGENTS_OWN}
    assert {name for name, *_ in LANDS} | settings | others == known - {
        "join",
        "features",
        "program_signals",
        "limits_threads",
    }


def test_each_flag_reaches_its_field_of_the_config():
    for name, value, flags in LANDS:
        with case(name):
            asked = config(*flags)
            owner = next((each for each in asked.features if name in each.__struct_fields__), asked)
            assert attrgetter(name)(owner) == value


def test_the_port_of_the_workers_master(unused_tcp_port):
    assert config("--master-port", str(unused_tcp_port)).master_port == unused_tcp_port


def test_missing_values_are_the_runs_or_torchruns_default():
    given = config("--endpoint", "host:1")
    assert (given.join.settings, given.logs) == (RequestedSettings(), LogOptions())
    assert (given.join.local_world_size, given.join.role, given.shutdown_timeout_s) == (1, "default", 30.0)
    assert (given.join.run_id, given.join.explicit_run_id) == ("none", False)
    assert (given.join.node_id, given.join.node_rank, given.join.addr) == (os.uname().nodename, None, "")


def test_workers_inherit_the_agents_environment_with_its_variables():
    environment = config(NCCL_DEBUG="INFO", PET_NNODES="1").environment
    assert (environment["NCCL_DEBUG"], environment["PET_NNODES"]) == ("INFO", "1")


def test_unknown_settings_of_a_rendezvous_are_reported_once():
    notes = plan("--rdzv-conf", "store_type=file,rank=1", "train.py").notes
    assert notes == (words.cli.unknown_keys("--rdzv-conf", ["store_type", "rank"], ""),)


# Effects of the command line.


@pytest.fixture
def plans(monkeypatch) -> list[LaunchPlan]:
    """Plans for the agent. No agent starts."""
    taken: list[LaunchPlan] = []

    def take(given: LaunchPlan) -> int:
        taken.append(given)
        return 7

    monkeypatch.setattr("node_agent.agent.run", take)
    return taken


def test_the_exit_code_is_the_agents(plans):
    assert main.main(["--nproc", "2", "train.py"]) == 7
    assert plans[0].config.join.local_world_size == 2


def test_bad_input_gets_one_line_and_exit_code_2_before_anything_starts(plans, capsys):
    assert main.main(["--nproc", "0", "train.py"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    refused = words.values.not_a_whole_number(1, 4096, "0", PLACES)
    assert line == f"node-agent: error: --nproc: {refused}"
    assert not plans


# Which CPUs the workers may use.


def test_workers_are_bound_near_their_gpus(monkeypatch):
    monkeypatch.setattr(
        "node_agent.kernel.workers.devices.Devices.pci_addresses",
        lambda devices, advice: ["0000:3b:00.0", "0000:5e:00.0"],
    )
    near = [frozenset({0, 1}), frozenset({2, 3})]
    asked = []
    monkeypatch.setattr("node_agent.features.numa.binding.cpu_sets", lambda *what: asked.append(what) or near)
    assert config("--numa-binding", "socket", "--nproc", "2", "train.py").options(NumaBinding).cpus == tuple(near)
    assert asked == [("socket", ["0000:3b:00.0", "0000:5e:00.0"], 2)]


def test_an_impossible_binding_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('takes long')")
    with pytest.raises(UsageError, match=r"^--numa-binding node: "):
        config("--numa-binding", "node", "--nproc", "4000", "train.py", PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_needs_no_script(flag, capsys):
    with pytest.raises(SystemExit, match="0"):
        main.main([flag])
    assert capsys.readouterr().out == f"node-agent {rdzv_protocol.VERSION}\n"


@pytest.mark.parametrize("signums", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_ctrl_c_or_a_second_sigterm_while_the_plan_is_made_ends_the_process_at_once(signums):
    """msgspec crashes if a signal's handler raises while it prepares a type."""
    program = f"""
import signal, sys
from node_agent import __main__
from node_agent.cli import main

def signalled(*_, **__):
    for signum in {[*map(int, signums)]}:
        signal.raise_signal(signum)
    raise AssertionError("it runs on")

main.plan_launch = signalled
sys.argv[1:] = ["--standalone", "train.py"]
sys.exit(__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signums[-1], "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_have_their_usual_effects_during_checks_by_hand(signum):
    done = subprocess.Popen(
        [sys.executable, "-m", "node_agent", "--check-only", "--pre-join-check", "echo begun; sleep 60"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with done:
        assert done.stdout.readline() == "begun\n"
        done.send_signal(signum)
        assert done.wait() == (ExitCode.FAILED if signum == signal.SIGINT else -signum)


@pytest.mark.parametrize(("most_gib", "code"), [("0", ExitCode.SUCCEEDED), ("999999", ExitCode.NODE_UNFIT)])
def test_a_check_by_hand_reaches_its_verdict_although_the_disk_of_its_output_is_full(most_gib, code):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "node_agent", "--check-only", "--check", f"disk={most_gib}"],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    says = f"node-agent: error: {flag_words.cannot_write(os.strerror(errno.ENOSPC))}\n"
    assert (done.returncode, done.stderr) == (code, says)


def test_a_preemption_file_in_a_folder_without_access_is_refused(tmp_path, monkeypatch):
    """root may look into every folder, so the system's answer is simulated."""
    monkeypatch.setattr("node_agent.features.preemption.os.access", lambda path, mode: False)
    says = preemption.folder_closed("--preemption-file", f"{tmp_path}/taken")
    assert complaint("--standalone", "--preemption-file", f"{tmp_path}/taken", "train.py") == says


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--endpoint host:1 --nnodes 5:7 --node-unit 4", words.plan.no_multiple("--node-unit", 4, 5, 7, "--nnodes")),
        ("--endpoint host:1 --nnodes 8,16 --node-unit 4", words.plan.unit_and_sizes("--node-unit", "--nnodes")),
        ("--run-id=", f"--run-id: {words.values.not_a_name('')}"),
        ("--preload json --no-python", words.command.preload_without_python("--preload")),
        ("--check-only", checks.nothing_to_check("--check-only")),
        ("--notice-signal SIGUSR2", notices.signal_without_notice("--notice-signal")),
        ("--notice-timeout 9 --notice-signal SIGTERM",
         notices.signal_that_stops("--notice-signal", "SIGTERM")),
        ("--log-dir /dev/null --duplicate-stderr-filters x",
         words.plan.copies_without_files("--duplicate-stderr-filters", "/dev/null")),
    ],
)  # fmt: skip
def test_contradicting_flags_are_refused(flags, line):
    assert complaint(*flags.split(), "train.py") == line
