"""`rdzvctl`: actions on runs and nodes, and the questions before them."""

import asyncio
import re
import shlex
import signal

from rdzv_protocol.exit_codes import ExitCode

from rdzv_server.words import completion, costs, operations
from rdzvctl import words as ctl
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import has_message, message_fields
from tests.support.rdzvctl import RDZVCTL, environment, rdzvctl, terminal
from tests.support.terminal import Terminal


async def test_a_run_is_stopped_when_that_is_confirmed(cluster: Cluster) -> None:
    await cluster.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    async with terminal(cluster, "stop", "--reason", "wrong data") as shown:
        await shown.shows(r"run r: running for .*: round 1 runs on 1 node\n(?s:.*)\[y/N\] ")
        shown.type("\n")
        assert await shown.exit_code() == ExitCode.FAILED
        assert ctl.actions.NOT_DONE in shown.text and (await cluster.server.run())["phase"] == "running"
    async with terminal(cluster, "stop", "--reason", "wrong data") as shown:
        await shown.shows(r"\[y/N\] ")
        shown.type("y\n")
        await shown.shows(r"\nrun r: ")
        assert await shown.exit_code() == 0
    assert await cluster.agents["a"].exit_code() == 1
    assert any(operations.stopped("wrong data") in line for line in cluster.agents["a"].err)
    done = await rdzvctl("stop", "r", endpoint=cluster.endpoint)
    assert done.code == ExitCode.FAILED and ctl.actions.nothing_to_do("stop", "run r: failed ") in done.err[0]
    assert len(done.err) == 1, "it need not be stopped first"


async def test_an_action_that_has_nothing_to_do_says_so_and_fails(cluster: Cluster) -> None:
    await (await cluster.node("a", "--nnodes", "2", "--run-id", "r", nproc=1)).line(completion.waiting_for(1))
    idle = {
        ("uncordon", "nosuch"): operations.not_cordoned("nosuch"),
        ("restart", "r"): operations.nothing_to_restart("r"),
        ("resize", "r", "2:2"): operations.has_size("r", 2, 2),
    }
    for words, why in idle.items():
        done = await rdzvctl(*words, endpoint=cluster.endpoint)
        assert (done.code, done.out) == (ExitCode.FAILED, []) and ctl.actions.idle(why) in done.err[0]
        assert len(done.err) == 1, "there is nothing to advise"
    done = await rdzvctl("forget", "r", endpoint=cluster.endpoint)
    assert done.code == ExitCode.FAILED and ctl.actions.nothing_to_do("forget", "run r: forming ") in done.err[0]
    assert ctl.actions.stop_first("r") in done.err[1]


async def test_a_resize_that_the_next_restart_would_wait_for_is_asked_about(cluster: Cluster) -> None:
    await cluster.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    async with terminal(cluster, "resize", "r", "1:4") as shown:
        assert await shown.exit_code() == 0 and "[y/N]" not in shown.text, "it costs nothing"
    async with terminal(cluster, "resize", "r", "4", columns=200) as shown:
        await shown.shows(re.escape(ctl.actions.costs(costs.waits(3))) + r"\nResize the run\? \[y/N\] ")
        shown.type("\n")
        assert await shown.exit_code() == ExitCode.FAILED


async def test_a_restart_that_is_confirmed_too_late_leaves_the_next_round_alone(cluster: Cluster) -> None:
    (worker,) = await cluster.nodes("a", "--run-id", "r", "--max-restarts", "1", *PATIENT, nproc=1)
    async with terminal(cluster, "restart", "r", columns=200) as shown:
        await shown.shows(r"\[y/N\] ")
        worker.order_exit(3)
        next_workers = await cluster.hub.group(1)
        shown.type("y\n")
        assert await shown.exit_code() == ExitCode.FAILED
        assert operations.round_over("r", 1, 2) in shown.text
    await cluster.finish(next_workers)


async def test_a_script_is_never_asked_for_confirmation(cluster: Cluster) -> None:
    await cluster.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    done = await rdzvctl("stop", "r", "--json", endpoint=cluster.endpoint)
    assert done.json.keys() == {"action", "run_id", "reason", "request_id", "message", "changed"}
    assert (done.json["action"], done.json["run_id"]) == ("stop", "r")
    assert await cluster.agents["a"].exit_code() == 1


async def test_a_standby_is_admitted(cluster: Cluster) -> None:
    flags = ("--nnodes", "1:2", "--run-id", "r", "--scale-up", "manual", *PATIENT, "--last-call-timeout", "0")
    await cluster.nodes("a", *flags)
    done = await rdzvctl("admit", endpoint=cluster.endpoint)
    assert done.code == ExitCode.FAILED and "no standby node" in done.err[0]
    await (await cluster.node("b", *flags)).line("standing by")
    shown = await rdzvctl("why", endpoint=cluster.endpoint)
    assert ctl.runs.next_step(ctl.steps.admit("r")) in shown.lines
    assert (await rdzvctl("admit", endpoint=cluster.endpoint)).lines[0].startswith("run r: ")
    await cluster.finish(await cluster.hub.group(4))


async def test_an_action_with_a_request_id_is_carried_out_once(lasting: Cluster) -> None:
    """The action is requested repeatedly, and at the next leader too."""
    await lasting.nodes("a", "--run-id", "r", *PATIENT, nproc=1)
    words = ("restart", "r", "--request-id", "night-1", "--reason", "new data")
    first = (await rdzvctl(*words, endpoint=lasting.endpoint)).lines
    assert first == [f"run r: {operations.restarted('new data')}"]
    await lasting.hub.group(1)
    await lasting.lose_server()
    await lasting.regain_server()
    assert (await rdzvctl(*words, endpoint=lasting.endpoint)).lines == first
    events = (await rdzvctl("events", "r", endpoint=lasting.endpoint)).lines
    assert sum(f"{operations.restarted('new data')} (by " in line for line in events) == 1


async def test_a_node_is_cordoned_for_a_time(cluster: Cluster) -> None:
    at = cluster.endpoint
    await cluster.nodes("ab", "--run-id", "r", "--nnodes", "2", *PATIENT, nproc=1)
    done = await rdzvctl("cordon", "b", "--for", "10m", "--reason", "ECC errors", endpoint=at)
    waits = costs.of_run("r", costs.stands_still_later(1, 500.0))
    assert done.lines == [operations.cordoned("b", 600, "ECC errors", waits)]
    (row,) = (line for line in (await rdzvctl("nodes", endpoint=at)).lines if line.startswith("b "))
    assert re.search(
        r"cordoned by .* since \d{4}-\d\d-\d\d \d\d:\d\d until \d{4}-\d\d-\d\d \d\d:\d\d: ECC errors$", row
    )
    assert (await rdzvctl("uncordon", "b", endpoint=at)).lines == [operations.uncordoned("b", "", by_operator=True)]
    done = await rdzvctl("drain", "node-b", endpoint=at)
    assert done.code == ExitCode.FAILED and done.err[0] == f"rdzvctl: {ctl.actions.no_run_has('node-b', ['a', 'b'])}"


async def test_a_node_is_drained_when_that_is_confirmed(cluster: Cluster) -> None:
    await cluster.nodes("ab", "--run-id", "r", "--nnodes", "1:2", *PATIENT, nproc=1)
    async with terminal(cluster, "drain", "a", "--deadline", "30s") as shown:
        await shown.shows(r"node a: running in run r\n(?s:.*)\[y/N\] ")
        shown.type("y\n")
        await shown.shows(operations.drained("a", ""))
        await shown.shows(ctl.actions.stays_cordoned("a", "rdzvctl uncordon a", None))
        assert await shown.exit_code() == 0
    assert await cluster.agents.pop("a").exit_code() == ExitCode.START_AGAIN
    await cluster.hub.group(1)


async def test_a_drained_node_stays_cordoned_until_the_printed_command_lets_it_join_again(cluster: Cluster) -> None:
    flags = ("--run-id", "r", "--nnodes", "2", *PATIENT)
    await cluster.nodes("ab", *flags, nproc=1)
    ctl_flags = ("--endpoint", cluster.endpoint)
    done = await rdzvctl(*ctl_flags, "drain", "b", "--reason", "new disk", "--for", "1h")
    program = f"rdzvctl --endpoint {cluster.endpoint}"
    uncordon = f"{program} uncordon b"
    waits = costs.of_run("r", costs.stands_still(1, 500.0))
    assert done.lines == [operations.drained("b", "new disk", waits), ctl.actions.stays_cordoned("b", uncordon, 3600.0)]
    assert await cluster.agents.pop("b").exit_code() == ExitCode.START_AGAIN
    fit, start = [line for line in (await rdzvctl(*ctl_flags, "why", "r")).lines if line.startswith("Next: ")]
    cordon = message_fields(fit.replace(program, "rdzvctl"), ctl.steps.uncordon_absent, node_id="b")["cordon"]
    assert has_message(cordon, ctl.servers.cordon, reason="new disk", excluded=False)
    assert fit.endswith(f": {uncordon}")
    agent = ctl.steps.agent("r", cluster.endpoint)
    assert start == ctl.runs.next_step(ctl.steps.or_start_more(1, agent))
    _, *words = shlex.split(fit[fit.index(uncordon) :])
    assert (await rdzvctl(*words)).lines == [operations.uncordoned("b", "", by_operator=True)]
    await cluster.node("b", *flags, nproc=1)
    await cluster.finish(await cluster.hub.group(2))


async def test_why_says_to_start_an_agent_again_that_ctrl_c_has_ended(cluster: Cluster) -> None:
    await cluster.nodes("ab", "--run-id", "r", "--nnodes", "2", *PATIENT, nproc=1)
    left = cluster.agents.pop("b")
    left.signal(signal.SIGINT)
    await left.exit_code()
    await cluster.agents["a"].line(completion.waiting_for(1))
    again, start = [each for each in (await rdzvctl("why", endpoint=cluster.endpoint)).lines if "Next: " in each]
    assert again == ctl.runs.next_step(ctl.steps.start_agent_again("b", "SIGINT"))
    assert start.startswith(ctl.runs.next_step(ctl.steps.or_start_more(1, "node-agent ")))


async def test_ctrl_c_while_a_server_is_silent() -> None:
    """`rdzvctl` does not wait for a server that accepts the request and never answers, and prints only the message."""
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()  # until rdzvctl is gone
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        at = "{}:{}".format(*server.sockets[0].getsockname())
        async with Terminal(*RDZVCTL, "status", env=environment(at)) as shown:
            await asked.wait()
            shown.type("\x03")
            assert await shown.exit_code() == 128 + signal.SIGINT
            assert "Traceback" not in shown.text
