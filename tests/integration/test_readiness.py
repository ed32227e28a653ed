"""The file that shows probes whether an agent is a member of its run, with real agents."""

import signal
from pathlib import Path

from node_agent import words
from node_agent.features.readiness import words as readiness
from rdzv_server.words import completion
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import pattern
from tests.support.outages import LOST
from tests.support.process_info import until
from tests.support.programs import refuses, start_agent
from tests.support.worker_hub import of_agent


async def test_an_agent_is_ready_from_its_join_to_its_leave_also_while_it_stands_by(
    cluster: Cluster, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("a", "b", "spare")}
    files["a"].write_text("4711\n")  # from a killed agent
    await cluster.lose_server()

    async def start(name: str) -> None:
        await cluster.node(name, "--nnodes", "2", "--ready-file", str(files[name]), *PATIENT, nproc=1)

    await start("a")
    await cluster.agents["a"].line("cannot reach rdzv-server")
    await until(lambda: not files["a"].exists())  # a thread removes it
    await cluster.regain_server()
    await until(files["a"].exists)
    assert files["a"].read_text() == f"{cluster.agents['a'].pid}\n"
    await cluster.agents["a"].line(completion.waiting_for(1))
    await start("b")
    workers = await cluster.hub.group(2)
    await start("spare")
    await cluster.agents["spare"].line("standing by")
    await until(lambda: all(file.exists() for file in files.values()))

    await cluster.lose_server()
    await cluster.agents["a"].line(LOST)
    assert files["a"].exists(), "who restarts the server must not have the nodes evicted"
    await cluster.regain_server()

    leaving = cluster.agents.pop("a")
    (worker,) = of_agent(workers, leaving.pid)
    await worker.tell("ignore SIGTERM")
    leaving.signal(signal.SIGTERM)
    await leaving.line(pattern(words.leaving.leaving))
    await until(lambda: not files["a"].exists())
    assert leaving.is_running, "its worker has not gone yet"
    worker.kill()
    await leaving.exit_code()
    second = await cluster.hub.group(2)
    assert {worker.agent_pid for worker in second} == {agent.pid for agent in cluster.agents.values()}
    assert files["b"].exists() and files["spare"].exists()
    await cluster.finish(second)
    assert not any(file.exists() for file in files.values())


async def test_a_ready_file_that_cannot_be_written_is_reported_before_anything_starts(tmp_path: Path) -> None:
    for path in (str(tmp_path / "gone" / "ready"), str(tmp_path)):
        await refuses(await start_agent("--ready-file", path), readiness.not_writable("--ready-file", path))
