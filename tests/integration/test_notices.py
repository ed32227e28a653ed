"""Workers get a notice before their round ends, with real processes: they save, acknowledge, and it ends early."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from node_agent.features.hangs import words as hang_words
from node_agent.features.preemption import words as preemption
from rdzv_server.words import completion, notices
from tests.support.cluster import PATIENT, Cluster
from tests.support.launchers import LONG_S
from tests.support.message_search import has_message, message_fields
from tests.support.outages import LOST, REACHED
from tests.support.programs import Program
from tests.support.rdzvctl import rdzvctl
from tests.support.worker_hub import Worker, of_agent

EXAMPLE = Path(__file__).parents[2] / "examples" / "checkpoint_on_notice.py"
NOTICE = (*PATIENT[:-2], "--shutdown-timeout", "100", "--notice-timeout", "80")
"""Flags of a run whose workers have far more time to save than a test takes."""
HASTY = (*PATIENT[:-2], "--shutdown-timeout", "2", "--notice-timeout", "80")
"""The same, with a scheduler that gives two seconds."""
LIMITS = ("--progress-timeout", "start=60,step=3")


async def all_listen(workers: list[Worker]) -> None:
    for worker in workers:
        assert await worker.tell("listen") == "None"


async def all_hear(workers: list[Worker], notice: str) -> None:
    assert await asyncio.gather(*(worker.tell("await-notice") for worker in workers)) == [notice] * len(workers)


async def all_acknowledge(workers: list[Worker]) -> None:
    for worker in workers:
        await worker.tell("acknowledge")


async def b_leaves(cluster: Cluster, flags: Sequence[str] = NOTICE) -> tuple[list[Worker], Program]:
    """Return the workers of two nodes, which know that node b leaves, and its agent, removed from the cluster."""
    workers = await cluster.nodes("ab", "--nnodes", "1:2", *flags)
    await all_listen(workers)
    leaver = cluster.agents.pop("b")
    leaver.signal(signal.SIGTERM)
    await all_hear(workers, "node_left b True")
    return workers, leaver


def read(path: str | Path) -> dict[str, Any]:
    return dict(json.loads(Path(path).read_text()))


async def events(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    found = json.loads(await cluster.server.get("/v1/runs/none/events"))["events"]
    return [event for event in found if event["kind"] == kind]


async def test_all_workers_get_a_notice_of_a_leaving_node_and_the_round_ends_when_all_have_saved(
    cluster: Cluster,
) -> None:
    first, leaver = await b_leaves(cluster)
    told = read(first[0].env["NODE_AGENT_NOTICE_FILE"])
    assert told["reason"].startswith("node b leaves: SIGTERM") and 0 < told["remaining_s"] <= 80
    await all_acknowledge(first[:3])
    assert (await cluster.server.run())["round"] == 1, "one has not saved yet"
    await all_acknowledge(first[3:])
    second = await cluster.hub.group(2)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    assert words.leaving.leaving_after_notice("SIGTERM", 80.0) in "\n".join(leaver.err)
    assert len(await events(cluster, "notice_given")) == 1
    (ended,) = await events(cluster, "notice_ended")
    assert has_message(ended["reason"], notices.acknowledged, workers=4)
    await cluster.finish(second)
    assert await cluster.restarts() == {"node_left": 1}


async def test_workers_that_end_after_they_have_saved_have_not_succeeded(cluster: Cluster) -> None:
    first, _ = await b_leaves(cluster)
    for worker in first:
        await worker.tell("acknowledge")
        worker.order_exit(0)
    await cluster.finish(await cluster.hub.group(2))
    assert await cluster.restarts() == {"node_left": 1}


async def test_a_worker_that_fails_after_it_has_saved_costs_nothing(cluster: Cluster) -> None:
    first, _ = await b_leaves(cluster)
    saved = of_agent(first, cluster.agents["a"].pid)
    await all_acknowledge(saved)
    saved[0].order_exit(1)  # before its agent's next look
    await cluster.finish(await cluster.hub.group(2))
    assert await cluster.restarts() == {"node_left": 1}


async def test_the_wait_for_a_worker_that_never_acknowledges_lasts_as_long_as_the_scheduler_allows(
    cluster: Cluster,
) -> None:
    """Four fifths of the time between SIGTERM and SIGKILL. The rest is for the workers' end."""
    first, leaver = await b_leaves(cluster, HASTY)
    await all_acknowledge(first[1:])
    second = await cluster.hub.group(2)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    ended = (await events(cluster, "notice_ended"))[0]
    assert 1 <= float(message_fields(ended["reason"], notices.not_acknowledged)["after_s"]) < 2
    await cluster.finish(second)


async def test_a_save_that_takes_longer_than_a_limit_for_hangs_is_not_a_hang(cluster: Cluster) -> None:
    """Nor is it a hang that workers which have saved wait for the others. In the next round, hangs are found again."""
    flags = (*PATIENT[:-2], "--shutdown-timeout", "10", "--notice-timeout", "5", "--max-restarts", "1", *LIMITS)
    first = await cluster.nodes("ab", "--nnodes", "1:2", *flags)
    await all_listen(first)
    for worker in first:
        await worker.tell("progress 7")
    leaver = cluster.agents.pop("b")
    leaver.signal(signal.SIGTERM)
    await all_hear(first, "node_left b True")
    await all_acknowledge(first[1:])  # the first one saves until the notice ends
    second = await cluster.hub.group(2)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    assert await events(cluster, "hang_suspected") == []
    for ranks in chain.from_iterable(combinations(range(4), size) for size in range(1, 5)):
        assert not has_message([*leaver.err, *cluster.agents["a"].err], hang_words.may_hang, ranks=ranks)
    (ended,) = await events(cluster, "notice_ended")
    assert has_message(ended["reason"], notices.not_acknowledged)
    for worker in second:
        await worker.tell("progress 8")
    await cluster.finish(await cluster.hub.group(2))
    assert await cluster.restarts() == {"node_left": 1, "hang": 1}


async def test_agents_do_not_wait_for_workers_without_support_for_notices(cluster: Cluster) -> None:
    await cluster.nodes("ab", "--nnodes", "1:2", *NOTICE)
    leaver = cluster.agents.pop("b")
    leaver.signal(signal.SIGTERM)
    second = await cluster.hub.group(2)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    assert "no worker listens" in (await events(cluster, "notice_ended"))[0]["reason"]
    await cluster.finish(second)


async def test_without_the_flag_workers_are_stopped_at_once_and_have_no_variables_of_notices(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "1:2", *PATIENT)
    assert not any(name.startswith("NODE_AGENT_NOTICE") for name in first[0].env)
    await all_listen(first)
    leaver = cluster.agents.pop("b")
    leaver.signal(signal.SIGTERM)
    second = await cluster.hub.group(2)
    assert await events(cluster, "notice_given") == []
    await cluster.finish(second)


async def test_a_second_signal_and_a_server_that_is_gone_end_the_wait(cluster: Cluster) -> None:
    _, impatient = await b_leaves(cluster)
    await impatient.signal_again(signal.SIGTERM)
    second = await cluster.hub.group(2)
    assert await impatient.exit_code() == ExitCode.START_AGAIN
    await all_listen(second)
    await cluster.lose_server()
    alone = cluster.agents.pop("a")
    await alone.line(LOST)
    alone.signal(signal.SIGTERM)
    for worker in second:
        await worker.gone()
    assert await alone.exit_code() == ExitCode.START_AGAIN


async def test_an_agent_that_is_killed_while_workers_have_a_notice_is_lost_as_any_other(cluster: Cluster) -> None:
    _, victim = await b_leaves(cluster)
    await cluster.server.parks(2)
    await victim.kill()
    await cluster.finish(await cluster.hub.group(2))
    assert (await cluster.restarts()).keys() in ({"node_lost"}, {"node_left"})


async def test_an_agent_that_is_killed_as_it_announces_its_leave_is_lost_when_its_lease_ends(cluster: Cluster) -> None:
    """If the agent is killed between two polls, the server cannot tell from the closed connection that it is gone."""
    first = await cluster.nodes("ab", "--nnodes", "1:2", *NOTICE, "--lease", "15")
    await all_listen(first)
    victim = cluster.agents.pop("b")
    victim.signal(signal.SIGTERM)
    await victim.kill()
    await cluster.finish(await cluster.hub.group(2))
    assert (await cluster.restarts()).keys() in ({"node_lost"}, {"node_left"})


async def test_a_drain_gives_notice(cluster: Cluster) -> None:
    first = await cluster.nodes("ab", "--nnodes", "1:2", *NOTICE)
    await all_listen(first)
    drained = cluster.agents.pop("b")
    drain = asyncio.create_task(rdzvctl("drain", "b", endpoint=cluster.endpoint))
    await all_hear(first, "node_drained b True")
    await all_acknowledge(first)
    second = await cluster.hub.group(2)
    assert await drained.exit_code() == ExitCode.START_AGAIN
    await drain
    await cluster.finish(second)
    assert await cluster.restarts() == {"node_drained": 1}


async def test_a_preemption_file_is_like_a_signal(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "preempted"
    preempted = await cluster.node("a", "--nnodes", "1:2", "--preemption-file", str(path), *NOTICE)
    await cluster.node("b", "--nnodes", "1:2", *NOTICE)
    first = await cluster.hub.group(4)
    await all_listen(first)
    path.touch()
    await all_hear(first, "node_left a True")
    await all_acknowledge(first)
    second = await cluster.hub.group(2)
    assert await cluster.agents.pop("a").exit_code() == ExitCode.START_AGAIN
    why = preemption.preempted(preemption.file_is_there(str(path)))
    assert words.leaving.leaving_after_notice(why, 80.0) in "\n".join(preempted.err)
    await cluster.finish(second)


async def test_an_agent_on_a_machine_that_is_already_preempted_does_not_join(cluster: Cluster, tmp_path: Path) -> None:
    """A service manager may start it again and again. Each join would restart the workers of all nodes."""
    path = tmp_path / "preempted"
    path.touch()
    flags = ("--nnodes", "1:2", *PATIENT[2:], "--last-call", "0")
    first = await cluster.nodes("b", *flags)
    await cluster.node("a", *flags, "--preemption-file", str(path))
    assert await cluster.agents.pop("a").exit_code() == ExitCode.START_AGAIN
    assert [event["node_id"] for event in await events(cluster, "node_joined")] == ["b"]
    await cluster.finish(first)
    assert await cluster.restarts() == {}


async def test_a_pod_that_slinky_drains_is_like_a_signal(cluster: Cluster, tmp_path: Path) -> None:
    """The kubelet replaces the file with the annotations as a whole, by a link to a new folder."""
    path = tmp_path / "annotations"
    write_annotations(path, 'nodeset.slinky.slurm.net/pod-cordon="false"')
    flags = ("--nnodes", "1:2", "--preemption-annotations", str(path), *NOTICE)
    drained = await cluster.node("a", *flags)
    await cluster.node("b", "--nnodes", "1:2", *NOTICE)
    first = await cluster.hub.group(4)
    await all_listen(first)
    write_annotations(path, 'nodeset.slinky.slurm.net/pod-cordon="true"')
    await all_hear(first, "node_left a True")
    await all_acknowledge(first)
    second = await cluster.hub.group(2)
    assert await cluster.agents.pop("a").exit_code() == ExitCode.START_AGAIN
    why = preemption.preempted(preemption.slinky_drains(str(path)))
    assert words.leaving.leaving_after_notice(why, 80.0) in "\n".join(drained.err)
    await cluster.finish(second)


def write_annotations(path: Path, *lines: str) -> None:
    new = path.with_suffix(".new")
    new.write_text("\n".join(['kubernetes.io/config.source="api"', *lines, 'mine="a \\"quoted\\" value"', ""]))
    new.replace(path)


async def test_a_preemption_notice_of_the_cloud_acts_like_a_signal(cluster: Cluster) -> None:
    """A metadata service like Google's: it holds the request until the machine is preempted."""
    is_asked, taken_back = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"last_etag=0 " not in await reader.readuntil(b"\r\n\r\n"):
            is_asked.set()
            await taken_back.wait()
        body = b"TRUE\n" if taken_back.is_set() else b"FALSE\n"
        head = f"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nETag: e1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as service:
        base = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        preempted = await cluster.node("a", "--nnodes", "1:2", "--preemption-poll", f"gcp={base}", *NOTICE)
        await cluster.node("b", "--nnodes", "1:2", *NOTICE)
        first = await cluster.hub.group(4)
        await all_listen(first)
        async with asyncio.timeout(LONG_S):
            await is_asked.wait()
        taken_back.set()
        await all_hear(first, "node_left a True")
        await all_acknowledge(first)
        second = await cluster.hub.group(2)
        assert await cluster.agents.pop("a").exit_code() == ExitCode.START_AGAIN
    why = preemption.preempted(preemption.GOOGLE_TAKES_BACK)
    assert words.leaving.leaving_after_notice(why, 80.0) in "\n".join(preempted.err)
    await cluster.finish(second)


async def test_workers_get_one_notice_when_all_nodes_leave(cluster: Cluster) -> None:
    """Slurm does this before a job's time limit. Workers get the signal itself when they have saved."""
    first = await cluster.nodes("ab", "--nnodes", "1:2", "--signals-to-handle", "SIGUSR1", *NOTICE)
    await all_listen(first)
    for agent in cluster.agents.values():
        agent.signal(signal.SIGUSR1)
    for worker in first:
        assert (await worker.tell("await-notice")).startswith("node_left ")
    await all_acknowledge(first)
    for worker in first:
        await worker.gone()
    for agent in (cluster.agents.pop("a"), cluster.agents.pop("b")):
        assert await agent.exit_code() == ExitCode.START_AGAIN
    assert len(await events(cluster, "notice_ended")) == 1


async def test_with_a_notice_signal_the_agent_waits_for_every_worker(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "worker.sh"
    script.write_text(
        'trap \'cat "$NODE_AGENT_NOTICE_FILE" > "$SAVED.$RANK"; echo saved > "$NODE_AGENT_NOTICE_ACK"\' USR2\n'
        'echo "ready $RANK"; while :; do sleep 0.05; done\n'
    )
    cluster.script = script
    env = {"SAVED": str(tmp_path / "saved")}
    for name in "ab":
        flags = ("--nnodes", "1:2", *NOTICE, "--notice-signal", "SIGUSR2", "--no-python", "bash")
        await cluster.node(name, *flags, nproc=1, env=env)
    for agent in cluster.agents.values():
        await agent.line("ready")
    leaver = cluster.agents.pop("b")
    leaver.signal(signal.SIGTERM)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    assert {read(tmp_path / f"saved.{rank}")["node_id"] for rank in (0, 1)} == {"b"}
    assert "all 2 listening workers" in (await events(cluster, "notice_ended"))[0]["reason"]


async def test_an_arrival_on_notice_waits_until_the_workers_have_saved(cluster: Cluster) -> None:
    first = await cluster.nodes("a", "--nnodes", "1:2", "--scale-up", "on-notice", *PATIENT[2:], "--last-call", "0")
    await all_listen(first)
    newcomer = await cluster.node("b", "--scale-up", "on-notice")
    await all_hear(first, "node_arrived b True")
    await newcomer.line(completion.admits_soon(1))
    await all_acknowledge(first)
    second = await cluster.hub.group(4)
    assert len(of_agent(second, newcomer.pid)) == 2
    await cluster.finish(second)
    assert await cluster.restarts() == {"node_arrived": 1}


async def test_a_restarted_server_asks_again(durable: Cluster) -> None:
    first, leaver = await b_leaves(durable)
    await all_acknowledge(first[:1])
    await durable.restart_server()
    await all_acknowledge(first[1:])
    second = await durable.hub.group(2)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    await durable.finish(second)


async def test_a_node_that_has_saved_stays_during_an_outage_until_the_others_have_saved(durable: Cluster) -> None:
    """If its agent left while the server is away, the server would then end the round without the other node."""
    first, leaver = await b_leaves(durable)
    saved = of_agent(first, leaver.pid)
    await all_acknowledge(saved)
    for worker in saved:
        worker.order_exit(0)
    await leaver.line(words.leaving.WORKERS_ENDED_AFTER_NOTICE)
    await durable.lose_server()
    await leaver.line(LOST)
    await durable.agents["a"].line(LOST)
    await durable.regain_server()
    await leaver.line(REACHED)
    await durable.agents["a"].line(REACHED)
    assert (await durable.server.run())["round"] == 1, "node a still saves"
    await all_acknowledge([worker for worker in first if worker not in saved])
    second = await durable.hub.group(2)
    assert await leaver.exit_code() == ExitCode.START_AGAIN
    await durable.finish(second)
    assert await durable.restarts() == {"node_left": 1}


@pytest.mark.torch
async def test_the_example_saves_at_the_same_step_on_all_ranks_and_continues_from_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    script = (str(EXAMPLE), "--steps", "100000", "--checkpoint", str(tmp_path / "checkpoint.pt"))
    flags = ("--endpoint", cluster.endpoint, "--nproc", "2", "--nnodes", "1:2", "--preload", "torch.distributed")
    a, b = [
        await Program.start(sys.executable, "-m", "node_agent", "--node-id", name, *flags, *NOTICE, *script)
        for name in "ab"
    ]
    for agent in (a, b):
        await agent.line("begins at step 0 of 100000", within_s=LONG_S)
    b.signal(signal.SIGTERM)
    assert await b.exit_code(within_s=LONG_S) == ExitCode.START_AGAIN
    await a.line("of 2: begins at step [1-9]", within_s=LONG_S)
    saved = [match[1] for line in (*a.out, *b.out) if (match := re.search(r"rank \d of 4: saved step (\d+)", line))]
    assert len(saved) == 4 and len(set(saved)) == 1
    assert sum(f"of 2: begins at step {saved[0]} of" in line for line in a.out) >= 1
