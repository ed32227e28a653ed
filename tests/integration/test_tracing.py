"""Traces of rounds, from a real server and real agents to a receiver of OTLP, directly and through a real collector.

A bad receiver has no effect.
"""

import asyncio
import json
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.words.tracing import traces_lost

from tests.support.cluster import PATIENT, Cluster
from tests.support.launchers import free_port
from tests.support.message_search import has_message
from tests.support.process_info import until
from tests.support.programs import PATIENCE_S, Program, start_agent

COLLECTOR = str(Path(__file__).parents[1] / "support" / "otlp_collector.py")
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


async def collector(*flags: str) -> tuple[Program, dict[str, str]]:
    """Return a receiver, and the variables that name it."""
    program = await Program.start(sys.executable, COLLECTOR, *flags)
    port = (await program.line(r"^\d+$"))[0]
    return program, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **SOON}


@asynccontextmanager
async def rotel(receiver: Mapping[str, str]) -> AsyncIterator[dict[str, str]]:
    """Yield the variables that name a real collector, which passes spans on to the receiver."""
    program = str(Path(pytest.importorskip("rotel").__file__).with_name("rotel-agent"))
    tried = await Program.start(program, "version")
    if await tried.exit_code() != 0:
        pytest.skip(f"rotel does not run here: {tried.err}")
    with free_port() as port:
        flags = ("--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", "127.0.0.1:0")
        to = ("--otlp-exporter-endpoint", receiver["OTEL_EXPORTER_OTLP_ENDPOINT"], "--otlp-exporter-protocol", "http")
        collector = await Program.start(program, "start", *flags, "--exporter", "otlp", *to)
        await listens(collector, int(port))
        yield {**receiver, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        await collector.end()


async def listens(program: Program, port: int) -> None:
    """Return when the program, which does not report it, accepts connections."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            assert program.is_running, program.err
            with suppress(ConnectionRefusedError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)


def spans(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.out if line.startswith("{")]


@pytest.mark.parametrize("way", ["at once", "through a collector"])
async def test_a_round_is_one_trace_of_what_server_and_agents_know(cluster: Cluster, way: str) -> None:
    receiver, variables = await collector()
    async with rotel(variables) if way == "through a collector" else nullcontext(variables) as variables:
        await traced(cluster, variables)
        await receiver.line("run_succeeded")
        await until(lambda: steps_of_nodes(receiver) == dict.fromkeys(("join", "spawn", "first_output"), 4))
    are_two_traces(spans(receiver))


def steps_of_nodes(receiver: Program) -> dict[str, int]:
    """Return the number of spans that agents have sent, by step, for steps that always occur."""
    names = Counter(span["name"].removeprefix("rdzv.node.") for span in spans(receiver))
    return {name: names[name] for name in ("join", "spawn", "first_output")}


async def traced(cluster: Cluster, variables: Mapping[str, str]) -> None:
    """Run two rounds, with these variables for exporters."""
    await cluster.serve("--otel")
    await cluster.server.end()
    server = await Program.start(*cluster.server.command("--otel"), env=variables)
    endpoint = (await server.line(r"listening on http://(\S+)"))[1]
    for name in "ab":
        flags = ("--endpoint", endpoint, "--node-id", name, "--run-id", "r", "--nnodes", "2", "--max-restarts", "1")
        await cluster.agent(name, "--otel", *flags, *PATIENT, env=variables)
    first = await cluster.hub.group(2)
    for worker in first:
        await worker.tell("say hello")
    first[0].order_exit(3)
    second = await cluster.hub.group(2)
    for worker in second:
        await worker.tell("say hello")
    await cluster.finish(second)
    server.signal(signal.SIGTERM)
    await server.exit_code()


def are_two_traces(found: list[dict[str, Any]]) -> None:
    traces = {span["traceId"] for span in found}
    assert len(traces) == 2, "one a round, from either exporter"
    for number, cause in ((1, "first"), (2, "worker_failure")):
        of_round = [span for span in found if span["attributes"]["rdzv.round"] == str(number)]
        assert len({span["traceId"] for span in of_round}) == 1
        (root,) = [span for span in of_round if "parentSpanId" not in span]
        assert root["name"] == "rdzv.round" and root["resource"]["service.name"] == "rdzv-server"
        assert root["attributes"]["rdzv.round.cause"] == cause
        nodes = [span for span in of_round if span["name"] == "rdzv.node"]
        assert {span["attributes"]["rdzv.node.id"] for span in nodes} == {"a", "b"}
        assert all(span["parentSpanId"] == root["spanId"] for span in nodes)
        for node in nodes:
            steps = [span for span in of_round if span.get("parentSpanId") == node["spanId"]]
            assert [span["resource"]["service.name"] for span in steps] == ["node-agent"] * len(steps)
            names = {span["name"].removeprefix("rdzv.node.") for span in steps}
            assert {"join", "wait", "spawn", "first_output"} >= names >= {"join", "spawn", "first_output"}
            assert all(int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) for span in steps)
    ran = {span["attributes"]["rdzv.round"]: span for span in found if span["name"] == "rdzv.round.run"}
    assert ran["1"]["status"]["code"] == "STATUS_CODE_ERROR" and "failed: exit code 3" in ran["1"]["status"]["message"]
    assert ran["2"]["attributes"]["rdzv.round.ended_by"] == "run_succeeded" and "code" not in ran["2"].get("status", {})


async def test_the_standard_variables_count() -> None:
    receiver, variables = await collector()
    named = {"OTEL_SERVICE_NAME": "train", "OTEL_RESOURCE_ATTRIBUTES": "team=a"}
    agent = await start_agent("--standalone", "--no-python", "--otel", script="true", env={**variables, **named})
    assert await agent.exit_code() == 0
    await receiver.line("rdzv.node.spawn")
    assert all(
        span["resource"]["service.name"] == "train" and span["resource"]["team"] == "a" for span in spans(receiver)
    )
    for off in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_SAMPLER": "always_off"}):
        receiver, variables = await collector()
        agent = await start_agent("--standalone", "--no-python", "--otel", script="true", env={**variables, **off})
        assert await agent.exit_code() == 0
        assert spans(receiver) == [] and not any("--otel" in line for line in agent.err)


@pytest.mark.parametrize("fault", ["refuses", "nobody", "hangs", "unknown exporter"])
async def test_an_exporter_in_trouble_causes_only_one_warning(fault: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if fault == "refuses":
            _, variables = await collector("--refuse")
        else:
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}", **SOON}
        if fault == "nobody":
            silent.close()
        if fault == "unknown exporter":
            variables["OTEL_TRACES_EXPORTER"] = "jaeger"
        variables["OTEL_EXPORTER_OTLP_TIMEOUT"] = "1"
        command = ("--standalone", "--no-python", "--otel", "sh", "-c")
        agent = await start_agent(*command, script="echo hello; sleep 2", env=variables)
        assert await agent.exit_code() == 0
        assert agent.out == ["hello"]
        assert sum(has_message(line, traces_lost) for line in agent.err) == 1, agent.err
