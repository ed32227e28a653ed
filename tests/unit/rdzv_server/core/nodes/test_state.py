"""Records about nodes: a server of today reads what earlier ones have written.

`journal.json` has the records that a server wrote before nodes had a separate machine, fact by fact and as a snapshot.
They are cordons by an operator and by the server, a drain, requests, and a forgotten run.
"""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from rdzv_server.core import journals
from rdzv_server.core.effects import Record
from rdzv_server.core.events import Incarnation
from rdzv_server.core.runs.registry import Registry
from rdzv_server.storage.record_codec import pack, unpack
from tests.support.scenario import RETENTION_S, WALL_AT

NEWER = ("idle", "condition", "is_followed")
"""Fields that are newer than the samples. Earlier servers ignore them."""
WRITTEN = json.loads(Path(__file__).with_name("journal.json").read_text())


def records(of: str, without: tuple[str, ...] = ()) -> list[Record]:
    """Return records as the store returns them, without fields that the writer did not know yet."""
    return [
        unpack(run_id, attempt, at, kind, _without(b64decode(body), without))
        for run_id, attempt, at, kind, body in WRITTEN[of]
    ]


def _without(body: bytes, fields: tuple[str, ...]) -> bytes:
    return msgpack.encode({name: value for name, value in msgpack.decode(body).items() if name not in fields})


def replayed(written: list[Record]) -> Registry:
    registry = Registry(RETENTION_S)
    for record in written:
        assert registry.replay(record) == []
    registry.restart(100.0, Incarnation())
    return registry


@pytest.mark.parametrize("of", ["facts", "snapshot"])
def test_records_of_earlier_servers_about_nodes_are_read_and_make_no_run(of: str) -> None:
    registry = replayed(records(of))
    state = registry.nodes.state
    kept = {node: (cordon.by, cordon.until, cordon.drain_s) for node, cordon in state.cordons.items()}
    assert kept == {"d": ("admin 10.0.0.7", None, 30.0), "b": ("rdzv-server", 600.0, None)}
    assert [each.fault for each in state.history.by_node["b"]] == ["failed", "failed", "failed", "excluded"]
    assert state.lifted == {"gone": WALL_AT}
    assert list(state.answers) == ["1", "2", "3", "4", "5"] and registry.next_deadline() == 600.0
    assert registry.runs() == []
    assert registry._used.last("run0") == (1, 5)


def test_facts_and_snapshots_are_written_as_earlier_servers_read_them() -> None:
    registry = replayed(records("facts"))
    written = [*registry.snapshot(journals.NODES, 100.0), *registry.snapshot(journals.NUMBERS, 100.0)]
    assert [(record.run_id, record.attempt, *_packed(record)) for record in written] == [
        (run_id, attempt, kind, msgpack.decode(b64decode(body)))
        for run_id, attempt, _, kind, body in WRITTEN["snapshot"]
    ]


def _packed(record: Record) -> tuple[str, Any]:
    kind, body = pack(record)
    return kind, _older(msgpack.decode(body))


def _older(value: Any) -> Any:
    """Return the value without the newer fields, at any depth."""
    if isinstance(value, dict):
        return {name: _older(each) for name, each in value.items() if name not in NEWER}
    return [_older(each) for each in value] if isinstance(value, list) else value


def test_a_snapshot_without_blame_is_read() -> None:
    state = replayed(records("snapshot", without=("history", "lifted"))).nodes.state
    assert list(state.cordons) == ["d", "b"] and not state.history.by_node and not state.lifted
