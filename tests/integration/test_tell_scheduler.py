"""Telling a scheduler about the run, with real agents: Kubeflow Trainer's controller is a stand-in behind TLS."""

from pathlib import Path
from typing import Any

import pytest

from node_agent.features.tell_scheduler import words
from tests.support.cluster import ALL_COME, Cluster
from tests.support.kubernetes_api import TRAINER_PATH, Api, kubernetes
from tests.support.message_search import has_message, pattern
from tests.support.programs import WORKERS


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in (("STEP_S", "0.02"), ("SAVE_S", "0.02"), ("CHECKPOINT", tmp_path / "checkpoint")):
        monkeypatch.setenv(name, str(value))


def metrics(status: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in status["metrics"]}


def in_a_pod(api: Api) -> dict[str, str]:
    """Return the variables that Trainer gives to the containers of a TrainJob."""
    named = {"URL": f"{api.base}{TRAINER_PATH}", "CA_CERT": api.ca, "TOKEN": api.token_file}
    return {f"KUBEFLOW_TRAINER_SERVER_{name}": value for name, value in named.items()}


@pytest.mark.usefixtures("training")
async def test_trainer_shows_the_run_and_its_end_though_it_refuses_at_first(cluster: Cluster, tmp_path: Path) -> None:
    cluster.script, cluster.nproc = WORKERS / "training_worker.py", 1
    (tmp_path / "api").mkdir()
    async with kubernetes(tmp_path / "api") as api:
        api.refusals = [(429, {"Retry-After": "1"})]
        for name in "ab":
            flags = ("--nnodes", "2", "--max-restarts", "1", "--lease", "2", "--tell-scheduler", "trainer", *ALL_COME)
            await cluster.node(name, *flags, env=in_a_pod(api))
        first = await cluster.hub.group(2)
        first[1].kill()
        second = await cluster.hub.group(2)
        await api.is_told()
        await cluster.finish(second)
        first_told, last_told = metrics(api.statuses[0]), metrics(api.statuses[-1])
    assert first_told["phase"] in ("running", "restarting") and first_told["nodes"] <= "2"
    assert (last_told["phase"], last_told["health"], last_told["chargedRestarts"]) == ("succeeded", "ok", "1")
    assert int(last_told["step"]) >= 1
    logged = [line for agent in cluster.agents.values() for line in agent.err]
    refusals = [line for line in logged if has_message(line, words.wrong_status, status=429)]
    assert len(refusals) == 1, "one agent tells, and logs the refusal once"


async def test_outside_of_a_scheduler_the_run_is_as_without_the_flag(cluster: Cluster) -> None:
    agent = await cluster.node("a", "--nnodes", "1", "--tell-scheduler", "slurm")
    workers = await cluster.hub.group(2)
    await agent.line(pattern(words.not_inside, scheduler=words.SLURM, missing="SLURM_JOB_ID"))
    await cluster.finish(workers)
