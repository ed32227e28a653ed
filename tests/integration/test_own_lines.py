"""Log lines of agents and servers: a live line on a terminal, plain lines in a pipe, JSON for collectors."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rdzv_protocol.words import run

from node_agent import words
from rdzv_server.words import completion, startup
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import has_message, message_fields, pattern
from tests.support.pipes import drain, fill
from tests.support.programs import WORKER, Program, Server, start_agent
from tests.support.rdzvctl import rdzvctl
from tests.support.terminal import Terminal

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
JSON = ("--log-format", "json")


def agent_of(cluster: Cluster, *flags: str) -> tuple[str, ...]:
    """Return the command line of an agent named a."""
    place = ("--endpoint", cluster.endpoint, "--node-id", "a", "--nnodes", "2", *PATIENT)
    return (sys.executable, "-m", "node_agent", *place, *flags, WORKER)


@pytest.mark.parametrize("columns", [120, 60])
async def test_on_a_terminal_one_line_counts_down_and_leaves_nothing_behind(cluster: Cluster, columns: int) -> None:
    async with Terminal(*agent_of(cluster), env=cluster.hub.env, columns=columns) as terminal:
        first = (await terminal.until(r"gives up in (\d+) s"))[1]
        second = (await terminal.until(rf"gives up in (?!{first})(\d+) s"))[1]
        third = (await terminal.until(rf"gives up in (?!{first}|{second})(\d+) s"))[1]
        assert int(first) > int(second) > int(third)
        shown = terminal.screen[-1]
        assert shown.startswith(f"node-agent: {completion.waiting_for(1)}: ") and len(shown) <= columns - 3
        assert ("…" in shown) == (columns == 60)
        assert terminal.written.count("\n") == 1, "one line, rewritten in place"

        await cluster.node("b", "--nnodes", "2", *PATIENT, nproc=1)
        workers = await cluster.hub.group(2)
        await workers[0].tell("say hello")
        await workers[0].tell("complain dear me")
        for worker in workers:
            worker.order_exit(0)
        assert await terminal.process.wait() == 0
        await terminal.until("run succeeded.*\n")
        said = (
            pattern(words.progress.joining, run_id="none"), "round 1: node 0 of 2, .*", "hello", "dear me",
            "run succeeded: all workers of 2 nodes exited 0", "",
        )  # fmt: skip
        for line, expected in zip(terminal.screen, said, strict=True):
            assert re.fullmatch(
                expected if expected in ("hello", "dear me", "") else rf"{TIME} node-agent: {expected}", line
            )


async def test_a_terminal_s_ctrl_c_ends_the_wait_on_a_clean_line(cluster: Cluster) -> None:
    async with Terminal(*agent_of(cluster), env=cluster.hub.env, columns=100) as terminal:
        await terminal.until("gives up in")
        terminal.type("\x03")
        assert await terminal.process.wait() == 75
        said = pattern(words.leaving.leaving, why="SIGINT")
        await terminal.until(said)
        assert any(re.fullmatch(rf"{TIME} node-agent: {said}.*", line) for line in terminal.screen)


async def test_in_a_pipe_a_wait_is_one_plain_line(cluster: Cluster) -> None:
    agent = await cluster.node("a", "--nnodes", "2", *PATIENT, env={"TERM": "xterm"})
    await agent.line(rf"^{TIME} node-agent: {re.escape(completion.too_few(1, 1, 2, 'a'))}; gives up in \d+ s$")
    agent.signal(signal.SIGTERM)
    await agent.exit_code()
    assert len(agent.err) == 3 and "\r" not in "".join(agent.err), agent.err


def objects(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


async def test_collectors_get_one_object_a_line_and_workers_output_as_it_is(cluster: Cluster) -> None:
    server = await cluster.serve(*JSON)
    first_round = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT, *JSON, nproc=1)
    first_round[1].order_exit(3)
    second_round = await cluster.hub.group(2)
    assert await second_round[0].tell("say plain") == "plain"
    await cluster.finish(second_round)
    assert any("plain" in agent.out for agent in cluster.agents.values()), "workers' output is not touched"
    await server.line("run succeeded")
    assert {line["program"] for line in objects(server.err)} == {"rdzv-server"}
    failed = next(agent for agent in cluster.agents.values() if any("workers_failed" in line for line in agent.err))
    kinds = [line["event"] for line in objects(failed.err) if "event" in line]
    assert [kind for kind in kinds if kind != "waiting"] == [
        "round_started", "workers_failed", "round_opened", "round_started", "run_succeeded"
    ]  # fmt: skip
    a = cluster.agents["a"]
    first, _ = [line for line in objects(a.err) if line.get("event") == "round_started"]
    assert first["run_id"] == "none" and first["node_id"] == "a" and first["program"] == "node-agent"
    assert first["round"] == 1 and first["group_rank"] in (0, 1) and first["level"] == "INFO"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert first["message"].startswith("round 1: node ")


@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        ("INFO", {"round_started", "workers_failed", "run_failed", "failure_report"}),
        ("error", {"workers_failed", "run_failed", "failure_report"}),
        ("CRITICAL", set()),
    ],
)
async def test_loglevel_leaves_out_what_weighs_less(level: str, kinds: set[str]) -> None:
    agent = await start_agent("--standalone", "--no-python", *JSON, script="false", env={"LOGLEVEL": level})
    assert await agent.exit_code() == 1
    assert {line["event"] for line in objects(agent.err) if "event" in line} == kinds


async def test_a_worker_s_unfinished_line_and_an_object_are_two_lines() -> None:
    agent = await start_agent("--standalone", "--no-python", *JSON, "sh", "-c", script="printf half >&2; printf out")
    assert await agent.exit_code() == 0
    assert agent.out == ["out"]
    assert [line for line in agent.err if not line.startswith("{")] == ["half"]
    assert objects([line for line in agent.err if line.startswith("{")])[-1]["event"] == "run_succeeded"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ((sys.executable, "-m", "node_agent", *JSON, "--nproc", "none", "x.py"), "--nproc"),
        ((sys.executable, "-m", "rdzv_server", "--port", "none", *JSON), "--port"),
    ],
    ids=["node-agent", "rdzv-server"],
)
async def test_an_error_in_a_command_line_is_an_object_too(command: tuple[str, ...], says: str) -> None:
    program = await Program.start(*command)
    assert await program.exit_code() == 2
    (line,) = objects(program.err)
    assert line["level"] == "ERROR" and line["message"].startswith("error: ") and says in line["message"]


async def test_a_warning_of_the_server_in_an_agent_is_an_object_too() -> None:
    """The server in an agent logs only through its agent."""
    agent = await start_agent("--standalone", "--no-python", *JSON, "sh", "-c", script="sleep 60")
    shown = json.loads((await agent.line(pattern(words.progress.status_page))).string)
    page = message_fields(shown["message"], words.progress.status_page)["url"]
    async with aiohttp.ClientSession() as session:
        answer = await session.get(f"{page}v1/status", headers={"Host": "evil.example", "Sec-Fetch-Site": "none"})
        assert answer.status == 403
    line = json.loads((await agent.line("rdzv-server: refused 127")).string)
    assert (line["level"], line["program"]) == ("WARNING", "node-agent")
    await agent.end()


async def test_a_server_s_log_is_as_quiet_as_loglevel_says(cluster: Cluster) -> None:
    quiet = await Program.start(*cluster.server.command(*JSON), env={"LOGLEVEL": "loud"})
    line = await quiet.line("LOGLEVEL")
    assert json.loads(line.string)["level"] == "WARNING"
    await quiet.end()
    silent = await Program.start(*cluster.server.command(), env={"LOGLEVEL": "ERROR"})
    silent.signal(signal.SIGTERM)
    await silent.exit_code()
    assert silent.err == []


async def test_the_log_says_each_transition_once_and_with_its_reason(cluster: Cluster) -> None:
    server = await cluster.serve(*JSON)
    flags = ("--run-id", "train", "--nnodes", "1:2", "--max-restarts", "3", *PATIENT, "--last-call-timeout", "0")
    await cluster.nodes("a", *flags, nproc=1)
    await cluster.node("b", *flags, nproc=1)  # arrives
    workers = await cluster.hub.group(2)
    workers[1].order_exit(3)  # fails
    await cluster.hub.group(2)
    await cluster.agents.pop("b").kill()  # is lost
    await cluster.hub.group(1)
    await cluster.node("c", *flags, nproc=1)  # arrives
    await cluster.hub.group(2)
    leaving = cluster.agents.pop("c")
    leaving.signal(signal.SIGTERM)  # leaves
    await leaving.exit_code()
    await cluster.finish(await cluster.hub.group(1))
    await server.line("run succeeded")

    assert await logged_transitions(server, "train") == {
        "node_lost", "node_left", "workers_failed", "round_opened", "round_started", "run_succeeded",
    }  # fmt: skip


async def test_the_log_says_what_operators_do_and_what_a_person_should_look_at(cluster: Cluster) -> None:
    server = await cluster.serve(*JSON)
    flags = ("--run-id", "train", "--nnodes", "1:3", "--scale-up", "manual", *PATIENT, "--last-call-timeout", "0")
    at = ("--endpoint", cluster.endpoint)
    (worker,) = await cluster.nodes("a", *flags, nproc=1)
    cluster.agents["b"] = await start_agent(
        *at, "--node-id", "b", *flags, WORKER, script="another", env=cluster.hub.env
    )
    await cluster.agents["b"].line("standing by")

    async def act(*words: str) -> None:
        assert (await rdzvctl(*words, "--reason", "its fan", endpoint=cluster.endpoint)).code == 0

    await act("admit", "train")
    await cluster.hub.group(2)
    await act("cordon", "b")
    await act("uncordon", "b")
    await act("resize", "train", "1:2")
    await act("restart", "train")
    await cluster.hub.group(2)
    await act("drain", "b")
    await cluster.agents.pop("b").exit_code()
    (worker,) = await cluster.hub.group(1)
    worker.order_exit(3)
    assert await cluster.agents.pop("a").exit_code() == 1
    await (await cluster.node("c", "--run-id", "other", "--nnodes", "2", *PATIENT)).line(completion.waiting_for(1))
    await act("stop", "other")
    assert await cluster.agents["c"].exit_code() == 1

    assert await logged_transitions(server, "train") == {
        "warning", "nodes_admitted", "node_cordoned", "node_uncordoned", "run_resized", "run_restarted", "node_drained",
        "node_left", "workers_failed", "round_opened", "round_started", "run_failed",
    }  # fmt: skip
    assert await logged_transitions(server, "other") == {"run_stopped", "run_failed"}


async def logged_transitions(server: Server, run_id: str) -> set[str]:
    """Return the kinds of the run's transitions. The log has each once, in order, with level, place and reason."""
    events = json.loads(await server.get(f"/v1/runs/{run_id}/events"))["events"]
    transitions = [event for event in events if event["kind"] not in ("run_created", "node_joined")]
    logged = [line for line in objects(server.err) if line.get("run_id") == run_id]
    assert [(line["event"], line["round"], line["attempt"]) for line in logged] == [
        (event["kind"], event["round"], event["attempt"]) for event in transitions
    ]
    for line, event in zip(logged, transitions, strict=True):
        assert event["reason"] in line["message"]
        assert line.get("node_id") == event.get("node_id")
        assert line["level"] == {"run_failed": "ERROR", "warning": "WARNING"}.get(event["kind"], "INFO")
    return {event["kind"] for event in transitions}


async def test_a_server_whose_log_is_not_read_serves_and_its_log_is_complete_later(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    """As in a stopped terminal: the pipe of its log is full before it starts."""
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    pipe = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    filler = fill(pipe)
    command = (sys.executable, "-m", "rdzv_server", "--port", str(unused_tcp_port), "--store", "memory")
    server = await Program.start("sh", "-c", f'exec "$@" 2> {fifo}', "sh", *command)
    agent = await start_agent("--endpoint", f"127.0.0.1:{unused_tcp_port}", "--no-python", script="true")
    assert await agent.exit_code() == 0
    server.process.terminate()
    while filler:
        filler -= len(os.read(pipe, filler))
    assert await server.exit_code() == 0
    read = drain(pipe).decode()
    os.close(pipe)
    assert has_message(read, run.succeeded) and has_message(read, startup.STOPPED)
