"""The records of torchrun's event log say which process had which rank."""

import json
from types import SimpleNamespace
from typing import Any

from rdzv_protocol.exit_codes import ExitCode

from node_agent.features.event_log.feature import EventLog
from tests.unit.node_agent.story import an_assignment


def test_each_process_has_its_own_rank_also_if_another_worker_could_not_be_started() -> None:
    config = SimpleNamespace(
        command=SimpleNamespace(title="train.py"), backend="static",
        join=SimpleNamespace(run_id="r", role="trainer", node_id="a"),
    )  # fmt: skip
    lines: list[str] = []
    kernel: Any = SimpleNamespace(config=config)
    log = EventLog(kernel, write=lines.append)
    log.started(an_assignment(), {0: 100, 2: 102, 3: 103})
    log.ended(ExitCode.FAILED)
    records = [json.loads(line)["metadata"] for line in lines]
    ranks = {(each["state"], each["worker_id"], each["global_rank"]) for each in records if each["worker_id"]}
    assert ranks == {(state, str(100 + rank), 2 + rank) for state in ("START", "TERMINATED") for rank in (0, 2, 3)}
