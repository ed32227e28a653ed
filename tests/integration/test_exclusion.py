"""The server excludes a node that costs its run one round after another."""

import json
import re
import signal
from pathlib import Path

from rdzv_protocol.exit_codes import ExitCode

from node_agent import words
from rdzv_server.core.node_history import MOST_OF_A_NODE
from rdzv_server.words import completion, service, startup
from tests.support.cluster import PATIENT, Cluster
from tests.support.message_search import has_message, pattern
from tests.support.process_info import until
from tests.support.programs import Program, Server, refuses
from tests.support.prometheus import Scrape
from tests.support.rdzvctl import rdzvctl
from tests.support.worker_hub import WorkerHub


async def test_a_node_that_fails_again_is_replaced_and_stays_out_after_a_restart_of_the_server(
    hub: WorkerHub, tmp_path: Path
) -> None:
    drained = tmp_path / "drained"
    command = f'echo "$RDZV_NODE" >{drained}'
    flags = ("--store", f"sqlite:{tmp_path}/runs.db", "--exclude-after", "2/1h", "--on-exclude", command)
    async with Cluster(hub, *flags) as cluster:
        await cluster.serve()
        given = ("--nnodes", "2", "--max-restarts", "5", "--run-id", "r", *PATIENT)
        await cluster.node("a", *given, "--exit-when-excluded", nproc=1)
        await (await cluster.node("b", *given, nproc=1)).line("round 1:")
        workers = await hub.group(2)
        await (await cluster.node("c", *given, nproc=1)).line("standing by")
        bad = cluster.agents["a"]
        for _ in range(2):
            next(worker for worker in workers if worker.agent_pid == bad.pid).order_exit(3)
            workers = await hub.group(2)
        del cluster.agents["a"]
        assert await bad.exit_code() == ExitCode.NODE_UNFIT
        assert has_message(bad.err[-1], words.leaving.kept_out)
        await until(lambda: drained.exists() and drained.read_text() == "a\n")
        (cordon,) = (await cluster.server.status())["server"]["cordons"]
        assert (cordon["node_id"], cordon["by"]) == ("a", "rdzv-server")
        assert cordon["reason"].startswith("blamed 2 times within 1 h, most recently: worker rank ")
        await cluster.restart_server()
        assert [each["node_id"] for each in (await cluster.server.status())["server"]["cordons"]] == ["a"]
        metrics = Scrape(await cluster.server.get("/metrics"))
        assert [metrics("rdzv_nodes_cordoned", by=by) for by in ("server", "operator")] == [1, 0]
        again = await cluster.node("a", *given, nproc=1)
        await again.line(completion.standby_kept_out("a", "blamed 2 times within 1 h", excluded=True))
        await cluster.finish(workers)
        events = json.loads(await cluster.server.get("/v1/runs/r/events"))["events"]
        assert [event["node_id"] for event in events if event.get("by") == "rdzv-server"] == ["a"]


async def test_the_operators_command_waits_for_other_nodes_with_the_same_finding(
    hub: WorkerHub, tmp_path: Path
) -> None:
    """So an operator who knows better can uncordon the node before it runs, also after a crash of the server."""
    told, shared = tmp_path / "told", tmp_path / "shared"
    shared.mkdir()
    flags = ("--exclude-after", "2/1h", "--on-exclude", f"echo >{told}")
    async with Cluster(hub, *flags, "--store", f"sqlite:{tmp_path}/runs.db") as cluster:
        await cluster.serve()
        agent = await cluster.node("a", "--max-restarts", "5", "--check", f"storage={shared}", *PATIENT, nproc=1)
        (worker,) = await hub.group(1)
        shared.rmdir()
        worker.order_exit(3)
        del cluster.agents["a"]
        assert await agent.exit_code() == ExitCode.NODE_UNFIT
        await cluster.server.line(r"excluded.*\(StorageFailed, temporary\)")
        await cluster.restart_server()
        await rdzvctl("uncordon", "a", endpoint=cluster.endpoint)
        await cluster.server.line(pattern(service.on_exclude_not_needed, node_id="a"))
        assert not told.exists()


async def test_the_end_of_the_command_is_known_though_the_servers_parent_ignores_sigchld() -> None:
    """The kernel does not keep the exit code of a child whose parent ignores it, and a server inherits that."""
    server = await Program.start("bash", "-c", "trap '' CHLD; exec \"$@\"", "bash", *Server.command())
    await server.line("listening")
    assert signal.SIGCHLD not in ignored(server.pid)


def ignored(pid: int) -> set[int]:
    """Signals that a process ignores."""
    (mask,) = re.findall(r"^SigIgn:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return {number for number in signal.valid_signals() if int(mask, 16) >> number - 1 & 1}


async def test_invalid_flags_are_refused() -> None:
    for flags, why in (
        (("--exclude-after", "3"), startup.no_window("3")),
        (("--exclude-after", "0/1h"), startup.bad_window(MOST_OF_A_NODE, "0/1h")),
        (("--exclude-for", "1h"), startup.needs_exclude_after("--exclude-for")),
    ):
        await refuses(await Program.start(*Server.command(*flags)), why)
