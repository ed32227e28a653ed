"""`rdzvctl` with real servers, agents and workers: what it shows, in a pipe and at a terminal, over a failover."""

import asyncio
import json
import os
import re
import shlex
import signal
import sys
import tarfile
from pathlib import Path

import pytest
import rdzv_protocol
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.words.run import correct_agent, read_output

from node_agent.features.log_reads import words as reads
from rdzv_server.core.policies.hangs import words as hang_words
from rdzv_server.words import completion
from rdzv_server.words import service as service_words
from rdzvctl import words as ctl
from rdzvctl.client import TOLD_AFTER_S
from tests.browser.crowd import Crowd
from tests.integration.replicas import Replicas
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import beginning, has_message
from tests.support.programs import PATIENCE_S, Program
from tests.support.prometheus import Scrape
from tests.support.rdzvctl import RDZVCTL, environment, rdzvctl, terminal
from tests.support.tcp_proxy import TcpProxy
from tests.support.terminal import Terminal

# Questions.


async def test_a_server_without_runs(cluster: Cluster) -> None:
    at = cluster.endpoint
    out = (await rdzvctl("status", endpoint=at)).lines
    assert re.fullmatch(rf"rdzv-server \S+ at {at}: ready; up \d+s", out[0])
    assert out[-1] == ctl.runs.no_runs(ctl.servers.SOME_ENDPOINT)
    done = await rdzvctl("why", endpoint=at)
    assert (done.code, done.err[0]) == (ExitCode.FAILED, f"rdzvctl: error: {ctl.runs.NO_RUN}")
    assert (await rdzvctl("runs", "--json", endpoint=at)).json == []


async def test_a_run_in_a_pipe(cluster: Cluster) -> None:
    """The only run need not be named, until there is another one."""
    at = cluster.endpoint
    await cluster.nodes("ab", "--nnodes", "2:3", "--run-id", "r/1", *PATIENT, "--last-call-timeout", "0")
    out = (await rdzvctl("runs", endpoint=at)).lines
    assert out[0].split() == ["RUN", "PHASE", "HEALTH", "SINCE", "ROUND", "NODES", "RESTARTS", "REASON"]
    assert re.fullmatch(r"r/1 +running +below size +\d+s +1 +2 of 2:3 +0/0 +round 1 runs on 2 nodes", out[1])
    out = (await rdzvctl("nodes", endpoint=at)).lines
    assert [line.split()[1:4] for line in out[1:]] == [["running", "0", "0-1"], ["running", "1", "2-3"]]
    assert {line.split()[0] for line in out[1:]} == {"a", "b"}
    out = (await rdzvctl("why", "r/1", endpoint=at)).lines
    assert re.fullmatch(r"Run r/1 has been running for \d+s: round 1 runs on 2 nodes\.", out[0])
    assert "r/1" in "\n".join((await rdzvctl("status", "r/1", endpoint=at)).lines)
    await (await cluster.node("x", "--run-id", "other", "--nnodes", "2")).line(completion.waiting_for(1))
    done = await rdzvctl("nodes", endpoint=at)
    assert (done.code, done.err) == (
        2,
        [f"rdzvctl: error: {ctl.runs.WHICH_RUN}", f"  {ctl.runs.name_one(['other', 'r/1'], 0)}"],
    )
    troubled, rest = (await rdzvctl("why", endpoint=at)).lines
    assert re.fullmatch(r"other: forming for \d+s: .*\. Next: Start 1 more node: node-agent .*", troubled)
    assert rest == "1 run needs nothing."


async def test_why_without_a_run_names_the_runs_that_have_failed_beside_the_only_active_one(cluster: Cluster) -> None:
    at = cluster.endpoint
    for run_id in "ab":
        (worker,) = await cluster.nodes(run_id, "--run-id", run_id, *PATIENT, nproc=1)
        worker.order_exit(3)
        assert await cluster.agents.pop(run_id).exit_code() == ExitCode.FAILED
    await cluster.nodes("c", "--run-id", "fine", *PATIENT, nproc=1)
    state, _, *failed = (await rdzvctl("why", endpoint=at)).lines
    assert state.startswith("Run fine has been running for ")
    assert [re.match(r"(\w+): failed \d+s ago: .* Next: Read ", line)[1] for line in failed] == ["b", "a"]
    assert len((await rdzvctl("why", "fine", endpoint=at)).lines) == 2
    await cluster.nodes("a", "--run-id", "a", *PATIENT, nproc=1)
    assert ctl.explanation.earlier_failed(1, "worker").rstrip(".") in (await rdzvctl("why", "a", endpoint=at)).lines[0]


async def test_why_names_a_node_whose_agent_may_not_join(cluster: Cluster) -> None:
    """So does every other view of the run, the consoles of the agents that wait, and the reason of its end."""
    waiting = await cluster.node("a", "--nnodes", "2", "--last-call-timeout", "500", "--lease", "2")
    await waiting.line(completion.waiting_for(1))
    assert await (await cluster.node("b", "--nnodes", "3")).exit_code() == ExitCode.REFUSED
    reason = completion.too_few(1, 1, 2, "a", refused=completion.refused({"b": "--nnodes 3 instead of 2"}))
    out = (await rdzvctl("why", endpoint=cluster.endpoint)).lines
    assert reason in out[0]
    assert out[1].startswith(f"Next: {correct_agent('b', '--nnodes 3 instead of 2')}")
    await waiting.line(re.escape(reason))


async def test_workers_that_still_run_after_others_of_their_node_finished_are_named(cluster: Cluster) -> None:
    """Status, why, page and metrics show the same, within one poll of the agent."""
    first, last = await cluster.nodes("a", "--run-id", "r", "--lease", "1")
    first.order_exit(0)
    async with asyncio.timeout(PATIENCE_S):
        while (await cluster.server.run())["phase"] != "finishing":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    found = (await cluster.server.run())["finishing"]
    assert (found["finished"], found["still_running"], found["warned"]) == ("rank 0", "rank 1 on node a", False)
    (said, *_) = (await rdzvctl("why", endpoint=cluster.endpoint)).lines
    assert re.fullmatch(r"Run r is finishing: rank 0 finished \d+s ago; still running: rank 1 on node a\.", said)
    page = await cluster.server.get("/runs/r?plain=0")
    assert "rank 0 finished; still running: rank 1 on node a" in page and "(last finished " in page
    assert Scrape(await cluster.server.get("/metrics"))("rdzv_run_finishing_seconds", run_id="r") > 0.0
    last.order_exit(0)
    assert await cluster.agents["a"].exit_code() == 0


async def test_a_command_of_why_can_be_copied_for_any_source_of_the_endpoint(cluster: Cluster, tmp_path: Path) -> None:
    """The command repeats a flag, and leaves out an environment variable."""
    files = ("-t", "3", "--log-dir", str(tmp_path / "logs"))
    (worker,) = await cluster.nodes("a", "--run-id", "night", *files, *PATIENT, nproc=1)
    worker.order_exit(3)
    assert await cluster.agents.pop("a").exit_code() == ExitCode.FAILED
    elsewhere = {"RDZV_ENDPOINT": "localhost:1", "RDZV_CONFIG": str(tmp_path / "config.toml")}
    await rdzvctl("config", "set-context", "my lab", "--endpoint", cluster.endpoint, env=elsewhere)
    for flags in (("--endpoint", cluster.endpoint), ("--context", "my lab"), ()):
        env = elsewhere if flags else {"RDZV_ENDPOINT": cluster.endpoint}
        (step, _) = [line for line in (await rdzvctl(*flags, "why", "night", env=env)).lines if "Next: " in line]
        command = step.removeprefix(beginning(ctl.runs.next_step)).removeprefix(
            read_output("", 0).partition("rdzvctl")[0]
        )
        assert command == shlex.join(["rdzvctl", *flags, "logs", "night", "0"])
        shown = (await rdzvctl(*shlex.split(command)[1:], env=env)).lines
        assert shown[0].startswith("rank 0 of run night: local rank 0 on node a ")


@pytest.mark.parametrize(
    "encoding", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
async def test_characters_that_the_encoding_of_stdout_has_not_are_escaped(
    cluster: Cluster, encoding: dict[str, str]
) -> None:
    await cluster.nodes("\u6a5f", "--nnodes", "1", "--run-id", "r", nproc=1)

    async def written(*words: str) -> str:
        program = await Program.start(*RDZVCTL, *words, env={**environment(cluster.endpoint), **encoding})
        assert await program.exit_code() == 0, program.err
        return "\n".join(program.out)

    assert "\\u6a5f" in await written("status", "r")
    assert "node \\u6a5f joined" in await written("events", "r")
    assert json.loads(await written("status", "r", "--json"))


async def test_json_is_the_servers_own(cluster: Cluster) -> None:
    at = cluster.endpoint
    await (await cluster.node("a", "--nnodes", "2", "--run-id", "r")).line(completion.waiting_for(1))
    status = (await rdzvctl("status", "--json", endpoint=at)).json
    assert status["servers"][0]["address"] == at and [run["run_id"] for run in status["runs"]] == ["r"]
    (run,) = (await rdzvctl("--json", "runs", endpoint=at)).json
    assert (
        run.keys()
        == (await cluster.server.run()).keys()
        == (await rdzvctl("status", "r", "--json", endpoint=at)).json.keys()
    )
    assert [node["node_id"] for node in (await rdzvctl("nodes", "--json", endpoint=at)).json] == ["a"]
    why = (await rdzvctl("why", "--json", endpoint=at)).json
    assert (why["run_id"], why["phase"], why["evidence"]) == ("r", "forming", [])
    assert why["next"] == [f"Start 1 more node: node-agent --endpoint {at} --run-id r ... SCRIPT"]


async def test_at_a_terminal_there_are_colours_and_nothing_is_wider(cluster: Cluster) -> None:
    await cluster.nodes("a", "--run-id", "a-run-with-a-long-name", nproc=1)
    async with terminal(cluster, "runs", columns=60) as shown:
        assert await shown.exit_code() == 0
        assert "\x1b[32mrunning" in shown.written
        assert all(len(line) <= 60 for line in shown.text.splitlines())
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        env = environment(cluster.endpoint, **variables)
        async with Terminal(*RDZVCTL, "runs", env=env) as shown:
            assert await shown.exit_code() == 0
            assert not re.search(r"\x1b\[3\dm", shown.written) and "running" in shown.text


async def test_without_rich_a_terminal_has_plain_columns(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError\n")
    env = environment(cluster.endpoint, PYTHONPATH=str(tmp_path))
    await cluster.nodes("a", "--run-id", "r", nproc=1)
    async with Terminal(*RDZVCTL, "runs", env=env) as shown:
        assert await shown.exit_code() == 0
        assert re.search(r"^r +running ", shown.text, re.MULTILINE)


# Events.

EVENT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d #(\d+) round (\d+): (.*)"


def numbers(lines: list[str]) -> list[int]:
    found = [re.fullmatch(EVENT, line) for line in lines]
    assert all(found), lines
    return [int(match[1]) for match in found if match]


async def test_events_have_the_sentences_of_the_log(cluster: Cluster) -> None:
    at = cluster.endpoint
    workers = await cluster.nodes("ab", "--nnodes", "2", "--run-id", "r/ 1", "--max-restarts", "1", nproc=1)
    workers[0].order_exit(3)
    await cluster.finish(await cluster.hub.group(2))
    out = (await rdzvctl("events", endpoint=at)).lines
    assert numbers(out) == list(range(1, len(out) + 1))
    told = {match[2] for line in out if (match := re.search(r"round (\d+): (.*)", line))}
    logged = [line.partition("run r/ 1 round ")[2].partition(": ")[2] for line in cluster.server.err]
    assert len([*filter(None, logged)]) > 4 and {*filter(None, logged)} <= told
    assert "run succeeded: all workers of 2 nodes exited 0" in out[-1]
    done = await rdzvctl("events", "r/ 1", "--last", "2", endpoint=at)
    assert done.out == out[-2:]
    assert done.err == [f"rdzvctl: {ctl.events.some_events(2, len(out))}"]
    events = [json.loads(line) for line in (await rdzvctl("events", "--last", "0", "--json", endpoint=at)).lines]
    assert [event["number"] for event in events] == numbers(out) and events[-1]["kind"] == "run_succeeded"
    done = await rdzvctl("events", "r/ 2", endpoint=at)
    assert done.code == ExitCode.FAILED and ctl.runs.no_such_run("r/ 2", ["r/ 1"]) in done.err[0]


async def test_events_are_followed_over_a_failover(lasting: Cluster) -> None:
    """None is missing and none comes twice. Ctrl-C is quiet."""
    workers = await lasting.nodes("a", "--run-id", "r", "--max-restarts", "5", *PATIENT, nproc=1)
    env = environment(lasting.endpoint)
    follows = await Program.start(*RDZVCTL, "events", "r", "--follow", env=env)
    await follows.line("round 1: runs on 1 node")
    await lasting.lose_server()
    workers[0].order_exit(3)
    await lasting.regain_server()
    await lasting.hub.group(1)
    await follows.line("round 2: runs on 1 node")
    follows.signal(signal.SIGINT)
    assert await follows.exit_code() == 128 + signal.SIGINT
    assert numbers(follows.out) == list(range(1, len(follows.out) + 1))
    assert all("no rdzv-server" in line or line.startswith("  ") for line in follows.err), follows.err


# Logs.


async def test_rdzvctl_logs_shows_where_a_workers_output_is(cluster: Cluster, tmp_path: Path) -> None:
    """The node and the folder, in each round; without files the agent's console."""
    at = cluster.endpoint
    flags = ("--run-id", "r", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    await cluster.node("a", *flags, "-t", "3", "--log-dir", str(tmp_path / "logs"), nproc=2)
    await cluster.node("b", *flags, nproc=1)
    for round_ in (1, 2):
        workers = await cluster.hub.group(3)
        (rank_of_b,) = (node["ranks"][0] for node in (await cluster.server.run())["nodes"] if node["node_id"] == "b")
        rank = 1 if rank_of_b != 1 else 2
        out = (await rdzvctl("logs", str(rank), endpoint=at)).lines
        assert re.fullmatch(rf"rank {rank} of run r: local rank \d on node a \(127\.0\.0\.1\)", out[0])
        path = Path(out[1].removeprefix(beginning(ctl.logs.in_folder)))
        assert path.parent.name == f"attempt_{round_ - 1}" and (path / "stdout.log").exists()
        out = (await rdzvctl("logs", "r", str(rank_of_b), endpoint=at)).lines
        assert "on node b" in out[0] and out[1] == ctl.logs.NO_FILES
        if round_ == 1:
            workers[0].order_exit(3)
    done = await rdzvctl("logs", "r", "3", endpoint=at)
    assert done.code == ExitCode.FAILED and ctl.logs.no_rank("r", 3, 2) in done.err[0]
    assert (await rdzvctl("logs", "r", "-1", endpoint=at)).code == ExitCode.BAD_INPUT
    assert (await rdzvctl("logs", "0", "--json", endpoint=at)).json["rank"] == 0


async def test_the_end_of_a_workers_log(cluster: Cluster, tmp_path: Path) -> None:
    """The agent reads it if it allows that. Otherwise the operator sees why not, and where the file is."""
    at = cluster.endpoint
    files = ("-t", "2", "--log-dir", str(tmp_path / "logs"))
    flags = ("--run-id", "r", "--nnodes", "3", *PATIENT)
    await cluster.node("a", *flags, *files, "--allow-log-reads", "--node-rank", "0", nproc=1)
    await cluster.node("b", *flags, *files, "--node-rank", "1", nproc=1)
    await cluster.node("c", *flags, "--allow-log-reads", "--node-rank", "2", nproc=1)
    workers = await cluster.hub.group(3)
    for text in ("loss 1", "\x1b[2Jloss 2", "loss 3"):
        await workers[0].tell(f"complain {text}")
    done = await rdzvctl("logs", "r", "0", "--lines", "2", endpoint=at)
    assert (done.code, done.out) == (0, [" [2Jloss 2", "loss 3"])
    assert re.fullmatch(r"rdzvctl: rank 0 of run r: local rank 0 on node a \(127\.0\.0\.1\)", done.err[0])
    assert re.fullmatch(
        r"rdzvctl: stderr of round 1, from the file /\S+/attempt_0/0/stderr\.log on that node", done.err[1]
    )
    found = (await rdzvctl("logs", "0", "--json", endpoint=at)).json
    (log,) = found["logs"]
    assert (found["node_id"], log["stream"], log["text"].splitlines()[2]) == ("a", "stderr", "loss 3")
    assert any(service_words.log_was_read("r", 0, "a", "127.0.0.1") in line for line in cluster.server.err)

    shown = (await rdzvctl("logs", "1", endpoint=at)).lines
    assert shown[1].startswith(beginning(ctl.logs.in_folder)) and shown[1].endswith("/attempt_0/0/")
    why = reads.not_allowed("b")
    assert shown[2] == ctl.logs.log_not_shown(why)
    refused = {
        ("1", "--lines", "2"): why,
        ("2", "--lines", "2"): reads.no_file("c", 2, "stderr", other_has_file=False),
        ("0", "--stream", "stdout"): reads.no_file("a", 0, "stdout", other_has_file=True),
    }
    for words, reason in refused.items():
        done = await rdzvctl("logs", "r", *words, endpoint=at)
        assert (done.code, done.out) == (ExitCode.FAILED, []) and reason in done.err[0]
    assert (await rdzvctl("logs", "0", "--lines", "1001", endpoint=at)).code == ExitCode.BAD_INPUT
    cluster.agents["a"].signal(signal.SIGSTOP)
    done = await rdzvctl("logs", "0", "--lines", "1", endpoint=at)
    assert done.code == ExitCode.FAILED and service_words.agent_did_not_answer("a", 5.0) in done.err[0]
    cluster.agents["a"].signal(signal.SIGCONT)
    assert (await rdzvctl("logs", "0", "--lines", "1", endpoint=at)).out == ["loss 3"]


async def test_logs_of_both_streams_are_shown_and_followed(cluster: Cluster, tmp_path: Path) -> None:
    files = ("-r", "3", "--log-dir", str(tmp_path / "logs"), "--allow-log-reads")
    (worker,) = await cluster.nodes("a", "--run-id", "r", *files, *PATIENT, nproc=1)
    await worker.tell("complain first")
    await worker.tell("say second")
    done = await rdzvctl("logs", "0", endpoint=cluster.endpoint)
    assert (done.code, done.out) == (0, ["second", "first"])
    assert [line.split()[1] for line in done.err[1:]] == ["stdout", "stderr"]
    found = (await rdzvctl("logs", "0", "--json", endpoint=cluster.endpoint)).json
    assert {log["stream"]: log["text"] for log in found["logs"]} == {"stdout": "second\n", "stderr": "first\n"}
    found = (await rdzvctl("logs", "0", "--json", "--stream", "stdout", endpoint=cluster.endpoint)).json
    assert [log["text"] for log in found["logs"]] == ["second\n"]
    async with terminal(cluster, "logs", "0", "--follow") as shown:
        seen = await shown.shows(r"stderr of round 1, .*\nfirst\n")
        await worker.tell("complain third")
        seen = await shown.shows(r"third\n", after=seen)
        await worker.tell("say fourth")
        await shown.shows(r"fourth\n", after=seen)
        await cluster.finish([worker])
        assert await shown.exit_code() == 0


async def test_a_log_is_followed_at_a_terminal_over_a_failover_and_into_the_next_round(
    lasting: Cluster, tmp_path: Path
) -> None:
    files = ("-r", "3", "--log-dir", str(tmp_path / "logs"), "--allow-log-reads")
    (worker,) = await lasting.nodes("a", "--run-id", "r", "--max-restarts", "1", *files, *PATIENT, nproc=1)
    await worker.tell("say one")
    async with terminal(lasting, "logs", "0", "--stream", "stdout", "--follow") as shown:
        seen = await shown.shows(r"stdout of round 1, .*\none\n")
        await worker.tell("say \x1b[2Jtwo")
        seen = await shown.shows(r" \[2Jtwo\n", after=seen)
        await lasting.lose_server()
        await worker.tell("say three")
        await lasting.regain_server()
        seen = await shown.shows(r"three\n", after=seen)
        worker.order_exit(3)
        (worker,) = await lasting.hub.group(1)
        await worker.tell("say four")
        seen = await shown.shows(r"rdzvctl: round 2: \S+/attempt_1/0/stdout.log on node a\n(?s:.*)four\n", after=seen)
        await lasting.finish([worker])
        await shown.shows("run r has succeeded", after=seen)
        assert await shown.exit_code() == 0
        assert "\x1b[2J" not in shown.written and shown.text.count("one\n") == 1


async def test_a_run_over_time_fits_the_terminal_and_is_json_for_scripts(cluster: Cluster) -> None:
    at = cluster.endpoint
    workers = await cluster.nodes("ab", "--run-id", "r/1", "--nnodes", "2", "--max-restarts", "1", *PATIENT, nproc=1)
    workers[0].order_exit(3)
    await cluster.hub.group(2)
    done = await rdzvctl("timeline", endpoint=at)
    assert done.code == 0, done.err
    assert re.fullmatch(r"run r/1: \S+ \S+ to \S+ \S+, \d+s", done.lines[0])
    assert max(map(len, done.lines)) <= 80 and any(line.startswith("running ") for line in done.lines)
    happened = [line.split(maxsplit=3)[2:] for line in done.lines if re.match(r"\d{4}-", line)]
    assert [mark for mark, _ in happened] == ["+", "x"] and "workers failed" in happened[1][1]
    shown = (await rdzvctl("timeline", "r/1", "--json", endpoint=at)).json
    assert [each["kind"] for each in shown["marks"]] == ["node_joined", "workers_failed"]
    async with terminal(cluster, "timeline", "r/1", columns=60) as screen:
        assert await screen.exit_code() == 0
        assert max(map(len, screen.text.splitlines())) <= 60 and "running" in screen.text
    done = await rdzvctl("timeline", "none", endpoint=at)
    assert done.code == ExitCode.FAILED


class Bundle(dict[str, str]):
    """Texts of an archive, by name, without its folder."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            files = {each.name.partition("/")[2]: archive.extractfile(each) for each in archive}
            super().__init__({name: file.read().decode() for name, file in files.items() if file})

    @property
    def all(self) -> str:
        return "\n".join(self.values())


async def test_a_bundle_has_the_parts_of_a_report_without_secrets(cluster: Cluster, tmp_path: Path) -> None:
    """One node shows its logs and the other does not. A worker has failed with a token in its error."""
    at, secret = cluster.endpoint, "hunter2hunter2"
    flags = ("--run-id", "big-model", "--nnodes", "2", "--max-restarts", "2", *PATIENT, "-r", "3")
    folder = ("--log-dir", str(tmp_path / "logs"))
    env = {"NCCL_DEBUG": "INFO", "LAB_KEY": secret, "NCCL_PROXY": f"http://u:{secret}@p", "MY_FOLDER": str(tmp_path)}
    await cluster.node("gpu-a", *flags, *folder, "--allow-log-reads", "--node-rank", "0", nproc=1, env=env)
    await cluster.node("gpu-b", *flags, *folder, "--node-rank", "1", nproc=1)
    workers = await cluster.hub.group(2)
    await workers[1].tell(f"complain ValueError: HF_TOKEN={secret} is not good")
    workers[1].order_exit(3)
    workers = await cluster.hub.group(2)
    await workers[0].tell(f"say password: {secret}, epoch 7")
    done = await rdzvctl("bundle", "-o", tmp_path / "b.tar.gz", endpoint=at, env={"LAB_TOKEN": "sesame-open"})
    assert done.code == 0, done.err
    found = Bundle(tmp_path / "b.tar.gz")
    assert secret not in found.all and "sesame-open" not in found.all and "HF_TOKEN=[redacted]" in found["evidence.txt"]
    assert found["logs/rank_0.stdout.txt"].strip() == "password: [redacted], epoch 7"
    assert json.loads(found["status.json"])["phase"] == "running"
    assert json.loads(found["settings.json"])["max_restarts"] == 2
    events = [json.loads(line)["kind"] for line in found["events.jsonl"].splitlines()]
    assert {"workers_failed", "stacks_asked"} <= {*events} and len(found["events.txt"].splitlines()) == len(events)
    assert {each["program"] for each in json.loads(found["versions.json"])} == {"rdzvctl", "rdzv-server"}
    agents = [json.loads(found[f"agents/{node}.json"]) for node in ("gpu-a", "gpu-b")]
    assert [each["versions"][0]["version"] for each in agents] == 2 * [rdzv_protocol.VERSION]
    told = {each["name"]: each["value"] for each in agents[0]["variables"]}
    assert (told["NCCL_DEBUG"], told["MY_FOLDER"], told["NCCL_PROXY"]) == ("INFO", None, None) and "LAB_KEY" in told
    assert "server_build_info" in found["metrics.txt"] and "rank" in found["stacks.txt"]
    assert reads.not_allowed("gpu-b") in found["README.md"]
    assert all(f"`{name.partition('/')[0]}" in found["README.md"] for name in found if name != "README.md")

    again = await rdzvctl("bundle", "-o", tmp_path / "b.tar.gz", endpoint=at)
    assert (again.code, again.err[0]) == (2, f"rdzvctl: error: {ctl.bundle.file_exists(str(tmp_path / 'b.tar.gz'))}")
    shown = await rdzvctl("bundle", "--anonymize", "--json", "-o", tmp_path / "c.tar.gz", endpoint=at)
    found = Bundle(tmp_path / "c.tar.gz")
    assert [*found] == shown.json["files"]
    for name in ("big-model", "gpu-a", "gpu-b", str(tmp_path), tmp_path.name):
        assert name not in found.all, name
    assert "node node-2 failed" in found["evidence.txt"] and {"agents/node-1.json", "agents/node-2.json"} <= {*found}


async def test_a_bundle_of_an_unknown_run_does_not_leave_a_file(cluster: Cluster, tmp_path: Path) -> None:
    done = await rdzvctl("bundle", "r", "-o", tmp_path / "b.tar.gz", endpoint=cluster.endpoint)
    assert done.code == ExitCode.FAILED
    done = await rdzvctl("bundle", "r", "-o", tmp_path / "no" / "b.tar.gz", endpoint=cluster.endpoint)
    assert done.code == ExitCode.BAD_INPUT
    async with terminal(cluster, "bundle", "r", "-o", "-") as shown:
        assert await shown.exit_code() == ExitCode.BAD_INPUT
    assert os.listdir(tmp_path) == ["hub"]


async def test_stacks_show_what_the_workers_are_doing_now(cluster: Cluster, tmp_path: Path) -> None:
    """The agents look, and the operator sees if one of them cannot. Nothing is done to the workers."""
    at = cluster.endpoint
    assert (await rdzvctl("stacks", "r", endpoint=at)).code == ExitCode.FAILED
    flags = ("--run-id", "r", "--nnodes", "2", "--max-restarts", "1", *PATIENT, "--log-dir", str(tmp_path))
    await (await cluster.node("a", *flags, "--node-rank", "0", nproc=1)).line(completion.waiting_for(1))
    refused = await rdzvctl("stacks", "r", endpoint=at)
    assert refused.code == ExitCode.FAILED and hang_words.no_workers("r") in refused.err[0]
    await cluster.node("b", *flags, "--node-rank", "1", nproc=2)
    workers = await cluster.hub.group(3)

    done = await rdzvctl("stacks", "r", "1", "--reason", "is it slow?", endpoint=at)
    assert done.code == 0, done.err
    assert re.fullmatch(r"round 1: rank 1 in \w+ at \S*\w+\.py:\d+", done.out[0])
    assert 'worker.py", line ' in done.out[1], "its stack"
    folder = re.fullmatch(rf"files with all threads: ({tmp_path}\S+) on node b; each .*", done.out[-1])
    assert folder and "rank_1.stacks.txt" in os.listdir(folder[1])
    shown = (await rdzvctl("events", "r", endpoint=at)).lines
    assert any(hang_words.operator_examines(1, "is it slow?") in line for line in shown)

    cluster.agents["b"].signal(signal.SIGSTOP)
    while (done := await rdzvctl("stacks", "r", "--json", endpoint=at)).code:
        assert has_message(done.err[0], hang_words.examined_just_now, run_id="r")
    nothing = re.escape(hang_words.no_answer_from([1, 2], 3, "b"))
    assert re.match(rf"rank 0 in \w+ at \S+:\d+; {nothing}", done.json["sentence"])
    cluster.agents["b"].signal(signal.SIGCONT)
    await cluster.finish(workers)
    refused = await rdzvctl("stacks", "r", endpoint=at)
    assert refused.code == ExitCode.FAILED and "run r has succeeded" in refused.err[0]


# Watching.


async def test_a_terminal_shows_what_changes_until_it_is_interrupted(cluster: Cluster) -> None:
    await (await cluster.node("a", "--nnodes", "2", "--run-id", "r", nproc=1)).line(completion.waiting_for(1))
    async with terminal(cluster, "status", "--watch") as shown, terminal(cluster, "status", "r", "--watch") as one:
        seen = await shown.shows(rf"\br +forming .* {completion.waiting_for(1)}")
        await one.shows(r"Run r has been forming for .*\n")
        await cluster.node("b", "--run-id", "r", nproc=1)
        await shown.shows(r"\br +running .* round 1 runs on 2 nodes", after=seen)
        await one.shows(r"Run r has been running for ")
        for each in (shown, one):
            each.type("\x03")
            assert await each.exit_code() == 128 + signal.SIGINT
            assert each.written.endswith("\r\n") and "Traceback" not in each.text
            assert "round 1 runs on 2 nodes" in each.written.rpartition("\x1b[?1049l")[2], "it stays to be read"


async def test_a_short_screen_shows_the_troubled_and_failed_runs_first_and_says_what_it_leaves_out(
    cluster: Cluster,
) -> None:
    async with Crowd(cluster.server.port) as crowd:
        await crowd.run("broken", ["a"], max_restarts=0)
        await crowd.fail("broken")
        for number in range(30):
            await crowd.run(f"well-{number}", ["a"])
        async with terminal(cluster, "status", "--watch") as shown:
            seen = await shown.shows(r"\.\.\. and 1\d more: 1\d running")
            await shown.shows(r"RESTARTS(?s:.{0,300})broken(?s:.*)well-29")
            assert seen is not None
        for words in (("--phase", "failed"), ("b*",)):
            found = (await rdzvctl("runs", *words, endpoint=cluster.endpoint)).lines
            assert [line.split()[0] for line in found] == ["RUN", "broken"]
        assert (
            await rdzvctl("status", "broken", "--phase", "failed", endpoint=cluster.endpoint)
        ).code == ExitCode.BAD_INPUT


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["plain", "json"])
async def test_a_pipe_gets_a_line_for_each_change(cluster: Cluster, flags: tuple[str, ...]) -> None:
    await (await cluster.node("a", "--nnodes", "2", "--run-id", "r", nproc=1)).line(completion.waiting_for(1))
    watching = await Program.start(*RDZVCTL, "status", "--watch", *flags, env=environment(cluster.endpoint))
    await watching.line(completion.waiting_for(1))
    await cluster.node("b", "--run-id", "r", nproc=1)
    await cluster.hub.group(2)
    await watching.line("round 1 runs on 2 nodes")
    watching.signal(signal.SIGINT)
    assert (await watching.exit_code(), watching.err) == (128 + signal.SIGINT, [])
    if flags:
        runs = [json.loads(line) for line in watching.out]
        assert runs[0]["phase"] == "forming" and runs[-1]["phase"] == "running"
    else:
        assert re.fullmatch(r"\d\d:\d\d:\d\d run r: running for \d+s: round 1 runs on 2 nodes", watching.out[-1])


@pytest.mark.parametrize("follows", [("status", "--watch"), ("events", "r", "--follow")], ids=["watch", "follow"])
async def test_a_command_that_follows_ends_with_its_reader_even_without_events(
    cluster: Cluster, follows: tuple[str, ...]
) -> None:
    await cluster.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    watching = await asyncio.create_subprocess_exec(
        *RDZVCTL, *follows, env=environment(cluster.endpoint), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        assert watching.stdout and await watching.stdout.readline()
        watching.stdout._transport.close()
        assert await watching.wait() == 128 + signal.SIGPIPE


async def test_a_watch_in_a_pipe_reports_that_no_server_answers(durable: Cluster) -> None:
    await durable.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    watching = await Program.start(*RDZVCTL, "status", "--watch", "--timeout", "1", env=environment(durable.endpoint))
    await watching.line("run r: running")
    await durable.lose_server()
    await watching.line("connection refused")
    await durable.regain_server()
    await watching.line(ctl.servers.ANSWER_AGAIN)
    watching.signal(signal.SIGINT)
    assert await watching.exit_code() == 128 + signal.SIGINT
    assert len(watching.err) <= 2, "rdzvctl reports an outage once"


async def test_a_server_that_returns_is_watched_again(durable: Cluster) -> None:
    await durable.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    async with terminal(durable, "status", "--watch") as shown:
        await shown.shows(r"\br +running ")
        await durable.lose_server()
        seen = await shown.shows("connection refused")
        await durable.regain_server()
        await shown.shows(r"\br +running ", after=seen)


# Several servers.


async def test_the_leader_is_followed(replicas: Replicas) -> None:
    """Any server may be asked, also during a failover."""
    first, second = replicas.servers
    await replicas.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    for server in (first, second):
        status = (await rdzvctl("status", "--json", endpoint=server.proxy.address)).json
        assert [run["run_id"] for run in status["runs"]] == ["r"]
    assert any("follows" in line for line in (await rdzvctl("status", endpoint=second.proxy.address)).lines)
    await first.kill()
    nodes = await rdzvctl("nodes", "r", endpoint=replicas.endpoint)  # it may say that it waits
    assert nodes.code == 0 and nodes.out[1].split()[:2] == ["a", "running"]
    assert (await rdzvctl("stop", "r", endpoint=replicas.endpoint)).lines[0].startswith("run r: ")
    assert await replicas.agents["a"].exit_code() == 1


async def test_commands_without_a_leader(unserved: Replicas) -> None:
    """Commands say what is unknown, with another exit code than for a run that does not exist."""
    leader = await unserved.replicate("--leader-lease", "60")
    await leader.leads()
    follower = await unserved.replicate("--leader-lease", "60")
    await follower.line("following")
    await leader.kill()
    at = follower.proxy.address
    for words in (("runs",), ("why", "r"), ("stop", "r")):
        done = await rdzvctl(*words, "--timeout", "0.1", endpoint=at)
        assert done.code == ExitCode.START_AGAIN, words
        assert leader.proxy.address in done.err[0], done.err
    done = await rdzvctl("status", "--timeout", "0.1", endpoint=at)
    assert done.code == ExitCode.START_AGAIN and not any("No runs" in line for line in done.out)
    for words in (("runs",), ("stop", "r")):
        done = await rdzvctl(*words, "--timeout", str(2.0 * TOLD_AFTER_S), endpoint=at)
        told = [has_message(line, ctl.connection.waits_for_leader, limit_s=2.0 * TOLD_AFTER_S) for line in done.err]
        assert told == [True, *[False] * (len(told) - 1)], "rdzvctl reports a long wait once"


async def test_a_leader_that_has_lost_its_etcd_does_not_pass_for_one(unserved: Replicas) -> None:
    """What it shows may be out of date, so commands exit with 75, whichever server is asked first."""
    async with TcpProxy(unserved.etcd.addresses[0]) as etcd:
        members = [etcd.address]
        leader = await unserved.replicate(members=members)
        await leader.leads()
        follower = await unserved.replicate(members=members)
        await follower.line("following")
        await unserved.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
        etcd.hold()
        async with asyncio.timeout(PATIENCE_S):
            while await leader.is_leader():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for servers in ((leader, follower), (follower, leader)):
            at = ",".join(server.proxy.address for server in servers)
            for words in (("status",), ("why", "r")):
                done = await rdzvctl(*words, "--timeout", "0.1", endpoint=at)
                assert done.code == ExitCode.START_AGAIN, words
        etcd.release()


async def test_runs_of_all_shards_are_listed(hub: object, etcd: object, request: pytest.FixtureRequest) -> None:
    async with Replicas(hub, etcd, "ctl-shards", shards=4) as sharded:
        flags = ("--shards", "4", "--rebalance-after", "0.2")
        servers = [await sharded.replicate(*flags), await sharded.replicate(*flags)]
        await servers[1].leads()
        for number in range(6):
            await sharded.node(f"n{number}", "--run-id", f"r{number}", "--nnodes", "2", nproc=1)
        for agent in sharded.agents.values():
            await agent.line(completion.waiting_for(1))
        done = await rdzvctl("runs", "--json", endpoint=servers[0].proxy.address)
        assert {run["run_id"] for run in done.json} == {f"r{number}" for number in range(6)}
        why = await rdzvctl("why", "r5", endpoint=servers[1].proxy.address)
        assert completion.waiting_for(1) in why.lines[0]


# Contexts.


async def test_contexts(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "rdzv" / "config.toml"
    env = {"XDG_CONFIG_HOME": str(tmp_path)}

    async def config(*words: str) -> list[str]:
        return (await rdzvctl("config", *words, env=env)).lines

    assert (await config("get-contexts"))[0] == ctl.contexts.no_contexts(str(path))
    assert await config("set-context", "lab", "--endpoint", cluster.endpoint) == [
        ctl.contexts.written(str(path), ctl.contexts.is_set("lab"), comments_lost=False)
    ]
    assert await config("current-context") == ["lab"], "the first one"
    assert f" at {cluster.endpoint}: " in (await rdzvctl("status", env=env)).lines[0]
    await config("set-context", "other", "--endpoint", "localhost:1", "--token-file", "t")
    await config("use-context", "other")
    rows = [line.split() for line in await config("get-contexts")]
    assert rows[1:] == [["lab", cluster.endpoint, "-", "-"], ["*", "other", "localhost:1", str(Path.cwd() / "t"), "-"]]
    assert f" at {cluster.endpoint}: " in (await rdzvctl("status", "--context", "lab", env=env)).lines[0]
    done = await rdzvctl("config", "use-context", "lap", env=env)
    assert done.code == 2 and ctl.contexts.no_context("lap", str(path), ["lab", "other"]) in done.err[0]
    await config("delete-context", "other")
    assert (await rdzvctl("config", "current-context", env=env)).code == 1
    path.write_text("# mine\n" + path.read_text())
    assert await config("use-context", "lab") == [
        ctl.contexts.written(str(path), ctl.contexts.is_current("lab"), comments_lost=True)
    ]
    path.write_text("current = \n")
    done = await rdzvctl("runs", env=env)
    assert done.code == 2 and done.err[0].startswith(f"rdzvctl: error: {path}:1: ")


# The program itself.


async def test_rdzvctl_does_not_import_what_only_other_programs_need() -> None:
    """`rdzvctl status` should feel instant."""
    code = "import sys, rdzvctl.cli; rdzvctl.cli.make_parser(['status']); print(*sys.modules)"
    program = await Program.start(sys.executable, "-c", code)
    assert await program.exit_code() == 0
    loaded = set(" ".join(program.out).split())
    assert not loaded & {
        "msgspec",
        "msgpack",
        "aiohttp",
        "asyncio",
        "rich",
        "tomllib",
        "rdzv_server",
        "node_agent",
        "torch",
    }
    assert not [name for name in loaded if name.startswith("rdzvctl.words.")]


async def test_help_and_version() -> None:
    """tests/golden/help.txt has the text of the pages."""
    assert (await rdzvctl("--help")).lines[0].startswith("usage: rdzvctl")
    assert "rdzvctl" in (await rdzvctl("--version")).lines[0]
    assert (await rdzvctl("why", "--help")).lines[0].startswith("usage: rdzvctl why")
