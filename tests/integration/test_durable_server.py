"""A server that is killed in any phase and started again: no worker notices, and no state is lost.

The timeouts of these runs are far longer than the tests wait.
"""

import asyncio
import os
import re
import shutil
import subprocess
import time
import urllib.error
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rdzv_protocol.actions import STOP
from rdzv_protocol.exit_codes import ExitCode
from rdzv_protocol.messages import PollRequest, Start
from rdzv_protocol.settings import RequestedSettings

from node_agent import words as agent_words
from node_agent.kernel.core.backoff import Unreachable
from node_agent.kernel.transport.http import HttpTransport
from rdzv_server.words import attempts, completion, losses, runs
from rdzv_server.words import service as service_words
from rdzv_server.words import storage as words
from rdzvctl.words import actions
from tests.integration.test_actions import act
from tests.support.cluster import ALL_COME, Cluster
from tests.support.disk import Disk, why_no_disk
from tests.support.message_search import has_message, nameless, part, pattern
from tests.support.outages import PATIENT, REACHED
from tests.support.process_info import is_running
from tests.support.programs import Program, Server
from tests.support.rdzvctl import rdzvctl
from tests.support.scenario import RUN_ID, a_join
from tests.support.worker_hub import Worker, WorkerHub, all_run, of_agent, restart_count

LEASE_S = 2.0
"""Lease of agents, one of which is lost."""


async def test_while_the_run_runs_workers_notice_nothing_and_the_counters_stay(durable: Cluster) -> None:
    first = await durable.nodes("ab", "--nnodes", "2", "--max-restarts", "3", *PATIENT)
    first[0].kill()
    second = await durable.hub.group(4)
    before = await durable.server.run()
    await durable.restart_server()
    for agent in durable.agents.values():
        await agent.line(REACHED)
    assert all_run(second)
    after = await durable.server.run()
    assert all(after[key] == before[key] for key in ("phase", "round", "restart_count", "restarts"))
    second[3].kill()
    third = await durable.hub.group(4)
    assert restart_count(third) == 2
    assert [worker.group_rank for worker in third] == [worker.group_rank for worker in second]
    await durable.finish(third)


async def test_a_failure_while_it_is_down_is_handled_when_it_is_back(lasting: Cluster) -> None:
    first = await lasting.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    await lasting.lose_server()
    first[2].kill()
    await first[3].gone()  # its own agent has stopped it
    assert all_run(first[:2]), "the other node's workers know nothing of it yet"
    await lasting.regain_server()
    second = await lasting.hub.group(4)
    assert restart_count(second) == 1
    await lasting.finish(second)


async def test_forming_the_nodes_that_wait_keep_waiting_for_the_same_round(lasting: Cluster) -> None:
    agent = await lasting.node("a", "--nnodes", "2", *PATIENT)
    await agent.line(completion.waiting_for(1))
    await lasting.restart_server()
    await agent.line(nameless(f"{REACHED}|{pattern(agent_words.connection.leads_now)}"))
    assert (await lasting.server.run())["nodes"][0]["node_id"] == "a"
    await lasting.node("b", *PATIENT)
    await lasting.finish(await lasting.hub.group(4))


async def test_restarting_the_next_round_forms_when_the_last_worker_is_gone(lasting: Cluster) -> None:
    first = await lasting.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    await first[0].tell("ignore SIGTERM")
    first[3].kill()
    await lasting.agents["a"].line(part(agent_words.progress.stopping_workers, round_=1, reason=""))
    await first[2].gone()
    await lasting.restart_server()
    assert is_running(first[0].pid)
    first[0].kill()
    second = await lasting.hub.group(4)
    assert restart_count(second) == 1, "one failure, one charge"
    await lasting.finish(second)


async def one_node_succeeds(durable: Cluster, workers: list[Worker]) -> None:
    """Let these workers of a node exit 0, until the server knows it."""
    for worker in workers:
        worker.order_exit(0)
        await worker.gone()
    while not any(node["state"] == "succeeded" for node in (await durable.server.run())["nodes"]):  # noqa: ASYNC110
        await asyncio.sleep(0)  # each look is a round trip


async def test_finishing_a_node_that_is_done_stays_done(durable: Cluster) -> None:
    workers = await durable.nodes("ab", "--nnodes", "2", *PATIENT)
    await one_node_succeeds(durable, workers[:2])
    await durable.restart_server()
    await durable.finish(workers[2:])
    assert (await durable.server.run())["phase"] == "succeeded"


async def test_after_the_end_a_late_agent_gets_the_runs_success(durable: Cluster) -> None:
    await durable.finish(await durable.nodes("a", "--run-id", "nightly"))
    await durable.restart_server()
    late = await durable.node("b", "--run-id", "nightly")
    assert await late.exit_code() == 0
    assert await late.line("run nightly has already succeeded")


async def test_a_node_that_vanishes_while_the_server_is_down_is_lost_after_its_fresh_lease(durable: Cluster) -> None:
    first = await durable.nodes("ab", "--nnodes", "1:2", "--lease", "3", *ALL_COME, "--join-timeout", "500")
    await durable.lose_server()
    agent = durable.agents.pop("b")
    lost = of_agent(first, agent.pid)
    await agent.kill()
    for worker in lost:
        await worker.gone()
    await durable.regain_server()
    second = await durable.hub.group(2)
    assert restart_count(second) == 0, "losing a node is free"
    await durable.finish(second)


@pytest.mark.parametrize("polls", [0, 1], ids=["before its first poll", "after the first answer"])
async def test_a_node_that_dies_soon_after_the_restart_is_lost_when_its_lease_ends(tmp_path: Path, polls: int) -> None:
    """A connection that closes after its first answer proves nothing, because a proxy may have closed it."""
    store = ("--store", f"sqlite:{tmp_path}/state.db")
    server = await Server.listen(*store)
    settings = RequestedSettings(min_nodes=2, max_nodes=2, lease_s=LEASE_S, disconnect_grace_s=0.0)
    witness, dying = (HttpTransport("127.0.0.1", server.port, None) for _ in range(2))
    joins = [transport.exchange(a_join(name, settings=settings)) for transport, name in ((witness, "a"), (dying, "b"))]
    assert [type(reply.directive) for reply in await asyncio.gather(*joins)] == [Start, Start]
    await server.kill()
    server = await Server.listen(*store, port=server.port)
    polled = asyncio.create_task(poll_on(witness, "a"))
    for _ in range(polls):
        await dying.exchange(PollRequest(run_id=RUN_ID, agent_id="b", revision=0))
    await dying.close()
    assert await server.line(losses.lost("b", losses.not_heard(LEASE_S)))
    polled.cancel()
    await witness.close()


async def poll_on(transport: HttpTransport, agent_id: str) -> None:
    """Poll as an agent does, one poll after another, until cancelled."""
    revision = 0
    while True:
        with suppress(Unreachable):
            reply = await transport.exchange(PollRequest(run_id=RUN_ID, agent_id=agent_id, revision=revision))
            revision = reply.revision


async def test_a_join_times_out_in_time_however_often_the_server_crashes(durable: Cluster) -> None:
    timeout_s = 8.0
    agent = await durable.node("a", "--nnodes", "2", "--join-timeout", str(timeout_s), "--lease", "5")
    await agent.line(completion.waiting_for(1))
    began = time.monotonic() - float((await durable.server.run())["age_s"])
    for _ in range(2):
        await asyncio.sleep(timeout_s / 4)
        await durable.restart_server()
    await agent.line(runs.join_timeout(completion.waiting_for(1)))
    assert timeout_s - 0.5 <= time.monotonic() - began < 1.75 * timeout_s
    assert await agent.exit_code() == 1


# Files that cannot be used.


async def refusal(*flags: str) -> str:
    """Return the line with which a server refuses to start."""
    server = await Program.start(*Server.command(*flags))
    assert await server.exit_code() == 2
    (line,) = server.err
    return line


async def test_two_servers_do_not_share_a_file(durable: Cluster, tmp_path: Path) -> None:
    assert words.in_use(str(tmp_path / "state.db")) in await refusal(*durable.server_flags)


def overwrite(file: Path) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.seek(size // 3)
        opened.write(bytes(size // 3))


@pytest.mark.parametrize("lost", ["file", "WAL", "WAL overwritten", "both overwritten"])
async def test_a_server_refuses_to_start_empty_from_a_file_that_lost_changes(
    durable: Cluster, tmp_path: Path, lost: str
) -> None:
    state, wal = tmp_path / "state.db", tmp_path / "state.db-wal"
    await durable.nodes("ab", "--nnodes", "2", *PATIENT)
    await durable.lose_server()
    for file in {"file": [state], "both overwritten": [state, wal]}.get(lost, [wal]):
        overwrite(file) if "overwritten" in lost else file.unlink()
    for _ in range(2):  # a service manager starts it again
        refused = await refusal(*durable.server_flags)
        assert has_message(refused, words.lost_changes, state=str(state)) or has_message(
            refused, words.damaged, place=str(state)
        )


@pytest.mark.parametrize("lost", ["file", "WAL", "both", "contents"])
async def test_a_state_file_removed_while_the_server_runs_is_rewritten(
    durable: Cluster, tmp_path: Path, lost: str
) -> None:
    state, wal = tmp_path / "state.db", tmp_path / "state.db-wal"
    first = await durable.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    for file in {"file": [state], "WAL": [wal], "both": [state, wal]}.get(lost, []):
        file.unlink()
    if lost == "contents":
        os.truncate(state, 0)
    first[3].kill()
    await durable.server.line(pattern(words.rewritten, state=str(tmp_path / "state.db")))
    second = await durable.hub.group(4)
    await durable.restart_server()
    assert (await durable.server.run())["restart_count"] == 1
    await durable.finish(second)


async def test_while_the_file_is_replaced_the_server_decides_nothing_and_workers_run(
    durable: Cluster, tmp_path: Path
) -> None:
    first = await durable.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    (tmp_path / "copy").touch()
    (tmp_path / "copy").rename(tmp_path / "state.db")
    first[3].kill()
    replaced = re.escape(words.only_in_memory(state := str(tmp_path / "state.db"), words.WAS_REPLACED, state))
    await durable.server.line(f"{replaced}; {service_words.NOTHING_DECIDED}")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        await durable.server.get("/readyz")
    assert all_run(first[:2])


def move(folder: Path, before: str, after: str) -> None:
    """Rename the state's files, and delete those that had the new names."""
    for each in folder.glob(f"{after}*"):
        each.unlink()
    for each in folder.glob(f"{before}*"):
        shutil.copy(each, folder / each.name.replace(before, after))


async def test_after_an_older_copy_was_restored_agents_of_a_later_round_join_again(
    durable: Cluster, tmp_path: Path
) -> None:
    first = await durable.nodes("ab", "--nnodes", "2", "--max-restarts", "2", *PATIENT)
    await durable.lose_server()
    move(tmp_path, "state.db", "copy.db")
    await durable.regain_server()
    first[3].kill()
    await durable.hub.group(4)
    await durable.lose_server()
    move(tmp_path, "copy.db", "state.db")
    await durable.regain_server()
    for name in "ab":
        await durable.agents[name].line(part(attempts.records_are_older))
    third = await durable.hub.group(4)
    third[3].kill()
    await durable.finish(await durable.hub.group(4))


async def test_after_an_older_copy_was_restored_a_node_that_succeeded_since_then_reports_it_again(
    durable: Cluster, tmp_path: Path
) -> None:
    workers = await durable.nodes("ab", "--nnodes", "2", *PATIENT)
    await durable.lose_server()
    move(tmp_path, "state.db", "copy.db")
    await durable.regain_server()
    for agent in durable.agents.values():
        await agent.line(REACHED)
    await one_node_succeeds(durable, workers[:2])
    await durable.server.parks(2)  # by then the answer to its report has come
    await durable.lose_server()
    move(tmp_path, "copy.db", "state.db")
    await durable.regain_server()
    await durable.finish(workers[2:])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    if reason := why_no_disk():
        pytest.skip(reason)
    with Disk(tmp_path / "disk") as disk:
        yield disk


async def test_a_read_only_disk_is_refused(small_disk: Disk) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk.path], check=True)  # noqa: ASYNC221
    line = await refusal("--store", f"sqlite:{small_disk.path}/state.db")
    assert "cannot" in line and str(small_disk.path) in line


@pytest.fixture
async def cramped(hub: WorkerHub, small_disk: Disk) -> AsyncIterator[Cluster]:
    """A cluster whose server's state is on a small disk."""
    async with Cluster(hub, "--store", f"sqlite:{small_disk.path}/state.db") as cluster:
        await cluster.serve()
        yield cluster


async def test_on_a_full_disk_the_server_takes_no_action_and_workers_run_until_there_is_room(
    cramped: Cluster, small_disk: Disk
) -> None:
    first = await cramped.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT)
    small_disk.fill()
    first[3].kill()
    await cramped.server.line(
        f"{part(words.cannot_write, why='database or disk is full')}; {service_words.NOTHING_DECIDED}"
    )
    assert all_run(first[:2])
    with pytest.raises(urllib.error.HTTPError, match="503"):
        await cramped.server.get("/readyz")
    status, answer = await act(cramped.server, STOP, run_id="none", reason="a mistake")
    assert (status, answer["code"]) == (503, "unavailable")
    assert has_message(answer["message"], words.cannot_write, why="database or disk is full")
    done = await rdzvctl("cordon", "a", "--timeout", "0.1", endpoint=cramped.endpoint)
    assert done.code == ExitCode.START_AGAIN
    assert has_message(done.err[1], actions.refused) and has_message(done.err[1], words.cannot_write)
    small_disk.free()
    second = await cramped.hub.group(4)
    assert restart_count(second) == 1
    await cramped.finish(second)


async def test_agents_that_run_while_the_disk_is_full_learn_the_reason(cramped: Cluster, small_disk: Disk) -> None:
    first = await cramped.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *PATIENT, "--lease", "4")
    small_disk.fill()
    first[3].kill()
    for agent in cramped.agents.values():
        await agent.line(part(words.cannot_write, path=f"{small_disk.path}/state.db", why="database or disk is full"))
    small_disk.free()
    second = await cramped.hub.group(4)
    assert restart_count(second) == 1
    await cramped.finish(second)


async def test_a_success_while_the_disk_is_full_waits_for_room_however_long_that_takes(
    cramped: Cluster, small_disk: Disk
) -> None:
    """The server answers, so the limit for a silent server does not end the wait."""
    limit_s = 3.0
    workers = await cramped.nodes("ab", "--nnodes", "2", *PATIENT, "--lease", "2", "--connect-timeout", f"{limit_s:g}")
    small_disk.fill()
    for worker in workers:
        worker.order_exit(0)
    for agent in cramped.agents.values():
        await agent.line(part(words.cannot_write, path=f"{small_disk.path}/state.db", why="database or disk is full"))
    await asyncio.sleep(2 * limit_s)  # an agent that waited only that long would end without the run's outcome
    small_disk.free()
    await cramped.finish([])
    for agent in cramped.agents.values():
        assert any(has_message(line, agent_words.progress.run_succeeded) for line in agent.said), agent.said


@pytest.mark.parametrize("code", [0, 3], ids=["succeeds", "fails"])
async def test_a_runs_end_is_confirmed_only_once_written_if_the_server_is_killed_while_the_disk_is_full(
    cramped: Cluster, small_disk: Disk, code: int
) -> None:
    """The next server starts on the full disk. The agents report the end again, and learn it once it is written."""
    workers = await cramped.nodes("ab", "--nnodes", "2", *PATIENT, "--lease", "4", "--max-restarts", "0")
    small_disk.fill()
    for worker in workers:
        worker.order_exit(code)
    for agent in cramped.agents.values():
        await agent.line(part(words.cannot_write, path=f"{small_disk.path}/state.db", why="database or disk is full"))
    for lives_on in (False, True):
        await cramped.server.line(part(words.cannot_write, path=f"{small_disk.path}/state.db"))
        run = await cramped.server.run()
        assert run["phase"] in ("running", "finishing") and run["health"]["state"] == "undecided"
        assert "rdzv_run_ended{" not in await cramped.server.get("/metrics")
        if not lives_on:
            await cramped.restart_server()
    assert all(agent.is_running for agent in cramped.agents.values())
    small_disk.free()
    for agent in cramped.agents.values():
        assert await agent.exit_code() == bool(code)
    run = await cramped.server.run()
    assert (run["phase"], run["restart_count"]) == ("failed" if code else "succeeded", 0)


async def test_agents_that_join_while_the_disk_is_full_learn_it_at_once_and_run_when_there_is_room(
    cramped: Cluster, small_disk: Disk
) -> None:
    small_disk.fill()
    for name in "ab":
        await cramped.node(name, "--nnodes", "2", *PATIENT)
    for agent in cramped.agents.values():
        await agent.line(
            pattern(words.cannot_write, path=f"{small_disk.path}/state.db", why="database or disk is full")
        )
    small_disk.free()
    await cramped.finish(await cramped.hub.group(4))
