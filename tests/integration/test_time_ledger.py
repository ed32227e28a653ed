"""Time ledger of a run with real processes: its parts add up to the wall clock, even if processes are killed meanwhile.

The server's clock is the monotonic one, across its restarts, and so is the test's. They differ only because figures are
rounded to milliseconds.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rdzv_protocol.text import age
from rdzv_protocol.words.run import restarts_took

from rdzv_server.words import completion
from tests.support.cluster import ALL_COME, Cluster
from tests.support.programs import WORKERS
from tests.support.prometheus import Scrape
from tests.support.rdzvctl import rdzvctl
from tests.support.worker_hub import of_agent

PHASES = ("running", "forming", "restarting", "waiting")
PARTS = ("training", "starting", "checkpointing", "detecting", "lost")
STEP_S, SAVE_S = 0.02, 0.25
ROUNDED_S = 0.0005 * len(PHASES + PARTS)
GRACE_S = 1.0
FLAGS = (*ALL_COME, "--lease", "6", "--disconnect-grace", str(GRACE_S), "--join-timeout", "500", "--run-id", "r")
"""Workers' progress comes twice a lease."""


@pytest.fixture(autouse=True)
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Step time, checkpoint time and checkpoint file of the workers' training."""
    for name, value in (("STEP_S", STEP_S), ("SAVE_S", SAVE_S), ("CHECKPOINT", tmp_path / "checkpoint")):
        monkeypatch.setenv(name, str(value))


async def shows(cluster: Cluster, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Return the run's status once the condition is true. Each look is a round trip, and checks the sum."""
    while True:
        run = await cluster.server.run()
        spent = run["time_s"]
        assert abs(sum(spent[name] for name in PHASES) - run["age_s"]) < ROUNDED_S or run["phase"] == "succeeded"
        if spent["training"] is not None:
            assert abs(sum(spent[name] for name in PARTS) - spent["running"]) < ROUNDED_S
        if is_so(run):
            return run


def is_past_its_checkpoint(run: dict[str, Any]) -> bool:
    told = run["progress"] or {"checkpoint_step": None}
    return told["checkpoint_step"] is not None and told["highest_step"] >= told["checkpoint_step"] + 10


async def test_every_second_is_counted_once_though_a_worker_a_node_and_the_server_are_killed(
    durable: Cluster,
) -> None:
    durable.script, durable.nproc = WORKERS / "training_worker.py", 1
    before = time.monotonic()
    agent = await durable.node("a", "--nnodes", "2", "--max-restarts", "1", *FLAGS)
    await agent.line(completion.waiting_for(1))
    begun = time.monotonic()
    await durable.node("b", *FLAGS)
    workers = await durable.hub.group(2)

    for worker in workers:
        await worker.tell("save")
    await shows(durable, is_past_its_checkpoint)
    killed = time.monotonic()
    workers[0].kill()
    workers = await durable.hub.group(2)
    back_s = time.monotonic() - killed
    failed = (await durable.server.run())["time_s"]
    assert failed["lost"] >= 10 * STEP_S and failed["checkpointing"] >= SAVE_S
    assert 0 < failed["restarts"]["worker_failure"] <= back_s + ROUNDED_S

    before_signs_of_life = time.monotonic()
    await durable.restart_server()
    restarted = await shows(durable, lambda run: run["progress"])
    assert {name: restarted["time_s"][name] for name in ("lost", "checkpointing", "restarts")} == {
        name: failed[name] for name in ("lost", "checkpointing", "restarts")
    }

    lost = durable.agents.pop("b")
    (gone,) = of_agent(workers, lost.pid)
    await lost.kill()
    await gone.gone()
    # this line comes after the write: the status may be ahead of the store
    await durable.server.line("round 3: opened: ")
    missed = (await durable.server.run())["time_s"]
    assert GRACE_S - ROUNDED_S <= missed["detecting"] <= time.monotonic() - before_signs_of_life + ROUNDED_S
    await durable.restart_server()
    waited = (await shows(durable, lambda run: True))["time_s"]
    assert {name: waited[name] for name in PARTS} == {name: missed[name] for name in PARTS}
    assert waited["waiting"] > missed["waiting"], "also while no server was there"
    await durable.node("c", *FLAGS)
    workers = await durable.hub.group(2)
    back_s = time.monotonic() - before_signs_of_life

    ending = time.monotonic()
    await durable.finish(workers)
    ended = time.monotonic()
    run = await shows(durable, lambda run: run["phase"] == "succeeded")
    spent = run["time_s"]
    assert ending - begun - ROUNDED_S <= sum(spent[name] for name in PHASES) <= ended - before + ROUNDED_S
    assert all(spent[name] > 0 for name in (*PARTS, "waiting", "restarting"))
    assert spent["restarts"].keys() == {"worker_failure", "node_lost"}
    assert 0 < spent["restarts"]["node_lost"] <= back_s - spent["detecting"] + ROUNDED_S
    whole_s = sum(spent[name] for name in PHASES)
    assert abs(spent["ettr"] - spent["training"] / whole_s) < 0.00005 + ROUNDED_S / whole_s
    await is_told_alike_everywhere(durable, spent)
    await durable.restart_server()
    assert (await durable.server.run())["time_s"] == spent


async def is_told_alike_everywhere(cluster: Cluster, spent: dict[str, Any]) -> None:
    """Check that the run's last event and every agent's console report the times of the status."""
    events = json.loads(await cluster.server.get("/v1/runs/r/events?limit=1000"))["events"]
    told = {name.removesuffix("_s"): seconds for name, seconds in events[-1]["time"].items() if seconds}
    assert told == {name: spent[name] for name in (*PARTS, *PHASES[1:], "ettr") if spent[name]}
    assert abs(events[-1]["at"] - events[0]["at"] - sum(spent[name] for name in PHASES)) < ROUNDED_S
    for agent in cluster.agents.values():
        account = (await agent.line("the run took .*"))[0]
        assert f"ratio {spent['ettr']:.3f}" in account
        shown = {name: float(seconds) for seconds, name in re.findall(r"(\d+\.\d) s ([a-z]+)", account)}
        rounded = {name: round(seconds, 1) for name, seconds in told.items() if name != "ettr"}
        assert shown == {name: seconds for name, seconds in rounded.items() if seconds}


async def test_a_hang_of_silent_workers_counts_as_detecting_not_as_training(cluster: Cluster) -> None:
    """Workers report no progress: a console line, the status, the metrics and `rdzvctl status` have no ratio."""
    limit_s = 3.0
    await cluster.nodes("a", "--run-id", "r", "--max-restarts", "1", "--silence-timeout", f"{limit_s:g}")
    second = await cluster.hub.group(2)
    spent = (await cluster.server.run())["time_s"]
    assert (spent["training"], spent["ettr"]) == (None, None) and limit_s <= spent["detecting"] <= spent["running"]
    metrics = await cluster.server.get("/metrics")
    assert "rdzv_run_effective_training_time_ratio{" not in metrics
    await cluster.finish(second)
    account = (await cluster.agents["a"].line("the run took .*"))[0]
    assert re.search(r"\d s running, \d+\.\d s detecting", account) and "training" not in account
    shown = "\n".join((await rdzvctl("status", "r", endpoint=cluster.endpoint)).lines)
    spent = (await cluster.server.run())["time_s"]
    parts = {"running": spent["running"] - spent["detecting"], "detecting": spent["detecting"]}
    told = ", ".join(f"{age(seconds)} {part}" for part, seconds in parts.items() if age(seconds) != age(0.0))
    assert f"Its time: {told}" in shown and "ETTR" not in shown


async def test_a_restart_of_a_hung_run_does_not_make_training_of_its_standstill(cluster: Cluster) -> None:
    cluster.script, cluster.nproc = WORKERS / "training_worker.py", 1
    flags = (*FLAGS, "--progress-timeout", "start=60,step=2", "--on-hang", "report", "--shutdown-timeout", "1")
    workers = await cluster.nodes("a", *flags)
    await shows(cluster, lambda run: run["progress"] and run["progress"]["step_s"])
    os.kill(workers[0].pid, signal.SIGSTOP)
    hung = (await shows(cluster, lambda run: run["time_s"]["detecting"] > 3.0))["time_s"]
    assert hung["training"] > 0 and hung["starting"] > 0
    assert (await rdzvctl("restart", "r", "--yes", endpoint=cluster.endpoint)).code == 0
    restarted = (await shows(cluster, lambda run: run["round"] == 2))["time_s"]
    assert restarted["detecting"] >= hung["detecting"]
    # A sign counts as training while it is on its way, which on a busy machine takes varying times.
    assert abs(restarted["training"] - hung["training"]) < hung["detecting"] / 2
    await cluster.finish(await cluster.hub.group(1))


async def test_a_standstill_is_shown_while_it_lasts(cluster: Cluster) -> None:
    cluster.script = WORKERS / "training_worker.py"
    workers = await cluster.nodes("a", *FLAGS, "--progress-timeout", "start=60,step=3", "--on-hang", "report")
    await shows(cluster, lambda run: run["progress"] and run["progress"]["step_s"])
    os.kill(workers[1].pid, signal.SIGSTOP)
    run = await shows(cluster, lambda run: run["time_s"]["detecting"] > 0)
    assert run["phase"] == "running" and run["hang"]
    scrape = Scrape(await cluster.server.get("/metrics"))
    assert scrape("rdzv_run_standstill_seconds", run_id="r") > 0
    assert scrape("rdzv_run_unproductive_seconds_total", run_id="r", kind="detecting") == 0
    os.kill(workers[1].pid, signal.SIGCONT)
    await shows(cluster, lambda run: run["time_s"]["detecting"] == 0)
    await cluster.finish(workers)


async def test_the_parts_of_a_restart_add_up_to_what_a_person_waits(cluster: Cluster) -> None:
    """From SIGKILL of a worker to the next progress: status, metrics, `rdzvctl` and the console tell the same."""
    cluster.script, cluster.nproc = WORKERS / "training_worker.py", 1
    workers = await cluster.nodes("ab", "--nnodes", "2", "--max-restarts", "1", *FLAGS)
    await shows(cluster, lambda run: run["progress"])
    killed = time.monotonic()
    workers[0].kill()
    second = await cluster.hub.group(2)
    back_s = time.monotonic() - killed
    run = await shows(cluster, lambda run: all(node["progress"] for node in run["nodes"]))
    told = run["restart_costs"]
    parts = told["cost"]
    assert (told["restarts"], told["followed"]) == (1, 1)
    assert parts["initializing_s"] is None and all(
        parts[name] is not None for name in parts.keys() - {"initializing_s"}
    )
    assert parts["importing_s"] > 0 and parts["stopping_s"] > 0 and parts["detecting_s"] > 0
    took_s = sum(seconds or 0.0 for seconds in parts.values())
    assert took_s == pytest.approx(run["history"][0]["took_s"], abs=0.0005 * len(parts))
    assert took_s <= back_s + ROUNDED_S, "the workers report progress before they connect to the test"
    scrape = Scrape(await cluster.server.get("/metrics"))
    for name, seconds in parts.items():
        part = name.removesuffix("_s")
        assert scrape("rdzv_run_restart_seconds_total", run_id="r", part=part) == pytest.approx(seconds or 0.0)
    sentence = restarts_took(1, 1, parts)
    shown = " ".join(" ".join((await rdzvctl("status", "r", endpoint=cluster.endpoint)).lines).split())
    assert sentence in shown
    assert sentence in await cluster.server.get("/runs/r?plain=0")
    await cluster.finish(second)
    for agent in cluster.agents.values():
        await agent.line(re.escape(sentence))
