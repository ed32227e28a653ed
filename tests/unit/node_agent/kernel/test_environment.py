"""A worker's environment, by what determines each variable. Compared with torchrun in test_environment_parity.py."""

import os
from unittest.mock import Mock

import pytest

from node_agent import words
from node_agent.kernel.config import AgentConfig
from node_agent.kernel.core.command import Command
from node_agent.kernel.environment import omp_warning
from node_agent.kernel.processes.temp_dir import TempDir
from node_agent.kernel.workers.spec_maker import SpecMaker
from tests.unit.node_agent.story import an_assignment, join


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.setattr("os.get_terminal_size", Mock(side_effect=OSError))


def environment(
    parent: dict[str, str], local_rank: int = 0, *, virtual_local_rank: bool = False, **changes
) -> dict[str, str]:
    config = AgentConfig(
        command=Command(()), join=join(run_id="nightly", role="trainer"), environment=parent,
        virtual_local_rank=virtual_local_rank,
    )  # fmt: skip
    return SpecMaker(config, TempDir()).environments(an_assignment(**changes))[local_rank]


def test_every_variable_of_torchruns_contract_is_there_and_right():
    assert environment({}, local_rank=3, round=2) == {
        "RANK": "5",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "10",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_RANK": "4",
        "ROLE_WORLD_SIZE": "8",
        "ROLE_NAME": "trainer",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "40002",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "nightly",
        "TORCHELASTIC_ERROR_FILE": "",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }


def test_a_worker_inherits_the_agents_environment():
    assert environment({"HOME": "/home/me", "NCCL_DEBUG": "INFO"}).items() >= {("HOME", "/home/me")}


def test_the_round_wins_over_what_the_agent_inherited_from_another_launcher():
    parent = {"RANK": "99", "WORLD_SIZE": "100", "MASTER_ADDR": "elsewhere", "TORCHELASTIC_RUN_ID": "outer"}
    worker = environment(parent)
    assert [worker[name] for name in parent] == ["2", "10", "10.0.0.1", "nightly"]


@pytest.mark.parametrize("name", ["TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"])
@pytest.mark.parametrize("value", ["3", "0", ""])
def test_a_variable_set_by_the_user_is_kept(name, value):
    assert environment({name: value})[name] == value


def test_a_single_worker_may_use_every_core():
    assert "OMP_NUM_THREADS" not in environment({}, local_world_size=1)


def test_the_agent_logs_that_it_set_omp_num_threads():
    assert omp_warning({}, 2) == words.progress.OMP_NUM_THREADS
    assert omp_warning({}, 1) is None
    assert omp_warning({"OMP_NUM_THREADS": "4"}, 2) is None


@pytest.mark.parametrize(
    ("parent", "seen"),
    [
        ({}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"CUDA_VISIBLE_DEVICES": "4, 5"}, {"CUDA_VISIBLE_DEVICES": "5"}),
        ({"HIP_VISIBLE_DEVICES": "6,7"}, {"CUDA_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "7"}),
        (
            {"CUDA_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "6,7"},
            {"CUDA_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "7"},
        ),
    ],
)
def test_with_virtual_local_ranks_a_worker_sees_only_its_own_gpu(parent, seen):
    """torch 2.15 does the same on ROCm."""
    made = environment(parent, 1, virtual_local_rank=True, local_world_size=2)
    assert made["LOCAL_RANK"] == "0"
    assert {name: made[name] for name in made if name.endswith("_VISIBLE_DEVICES")} == seen


def test_the_agents_own_environment_is_left_alone():
    parent = {"RANK": "99"}
    environment(parent)
    assert parent == {"RANK": "99"}


@pytest.mark.parametrize("streams", [{1}, {2}, {1, 2}])
def test_workers_get_the_size_of_the_agents_terminal(streams, monkeypatch):
    def size(stream):
        if stream not in streams:
            raise OSError
        return os.terminal_size((132, 43))

    monkeypatch.setattr("os.get_terminal_size", size)
    assert environment({}).items() >= {("COLUMNS", "132"), ("LINES", "43")}
    assert environment({"COLUMNS": "70"})["COLUMNS"] == "70"


def test_a_terminal_without_a_size_sets_no_variables(monkeypatch):
    monkeypatch.setattr("os.get_terminal_size", lambda stream: os.terminal_size((0, 0)))
    assert {"COLUMNS", "LINES"}.isdisjoint(environment({}))
