"""Today's server reads each released format, in a state file and in etcd, with a record of each kind.

`python -m tests.unit.rdzv_server.storage.test_formats` writes the present formats.
"""

import asyncio
import json
import shutil
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack, structs

from rdzv_server.core.effects import Record
from rdzv_server.core.events import SnapshotPart
from rdzv_server.core.kernel.run import RunState
from rdzv_server.core.policies import POLICIES
from rdzv_server.storage import sqlite
from rdzv_server.storage.base import Store
from rdzv_server.storage.record_codec import _KINDS
from rdzv_server.storage.sqlite import SqliteStore
from tests.support.etcd import Shared, etcd_cluster, need_aetcd
from tests.support.samples import sample
from tests.unit.rdzv_server.storage.test_stores import EVENTS, RECORDS

FOLDER = Path(__file__).parent / "formats"
SHARDS = 4
STATE = "state"
"""Id of a run whose only record is a snapshot of a whole state."""


def files(kind: str) -> list[Any]:
    """Return the files of each released format."""
    return [pytest.param(file, id=file.stem) for file in sorted(FOLDER.glob(f"{kind}-*"))]


def held(file: Path) -> dict[str, bytes]:
    """Return the keys and values of an etcd."""
    return {key: b64decode(value) for key, value in json.loads(file.read_text()).items()}


async def check(store: Store) -> None:
    """Check that the store has all that the program which wrote it stored."""
    records = await store.load()
    assert [record for record in records if record.run_id in {each.run_id for each in RECORDS}] == RECORDS
    assert await store.read_events(EVENTS[0].run_id, 1, 0, 100) == EVENTS
    kinds = {record.run_id.removeprefix("kind-"): record for record in records if record.run_id.startswith("kind-")}
    assert all(type(record.fact).__name__ == kind for kind, record in kinds.items()) and len(kinds) >= 33
    (state,) = [record.fact for record in records if record.run_id == STATE]
    assert isinstance(state, SnapshotPart)
    assert msgpack.decode(state.data, type=RunState).agents
    kept = [policy.name for policy in POLICIES if msgpack.decode(state.data, type=policy.State) != policy.State()]
    assert {"hangs", "stragglers", "time_ledger"} <= set(kept), "a policy lacks its state"
    await store.close()


@pytest.mark.parametrize("file", files("format"))
async def test_the_present_server_reads_a_file_of_each_released_format(tmp_path: Path, file: Path) -> None:
    await check(SqliteStore(shutil.copy(file, tmp_path)))


@pytest.mark.parametrize("file", files("etcd-format"))
async def test_the_present_server_reads_what_each_released_format_holds_in_etcd(shared: Shared, file: Path) -> None:
    from rdzv_server.storage.etcd import settle_format

    for key, value in held(file).items():
        await shared.put(key, value)
    await settle_format(shared.client, shared.prefix, SHARDS)
    await check(await shared.lead())


def test_the_current_format_is_among_the_recorded_ones() -> None:
    need_aetcd()
    from rdzv_server.storage import etcd

    present = {f"format-{sqlite.FORMAT}", f"etcd-format-{etcd.FORMAT}"}
    assert present <= {file.stem for file in FOLDER.iterdir()}, "a new format needs a file and a migration"


# Writing them.


def _records() -> Sequence[Record]:
    kinds = [Record(f"kind-{name}", 1, 1.0, sample(kind)) for name, kind in _KINDS.items()]
    states = [sample(RunState), *(sample(policy.State) for policy in POLICIES)]
    fields = {name: value for state in states for name, value in structs.asdict(state).items()}
    state = SnapshotPart(msgpack.encode(fields), is_last=True)
    return [*RECORDS, *kinds, Record(STATE, 1, 1.0, state)]


async def _write_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(f"{folder}/state.db")
        await store.load()
        await store.append(_records(), EVENTS)
        await store.close()
        shutil.copy(store.path, FOLDER / f"format-{sqlite.FORMAT}.db")


async def _write_etcd() -> None:
    from rdzv_server.storage.etcd import FORMAT, settle_format
    from rdzv_server.storage.etcd_client import EtcdClient, end_of

    with tempfile.TemporaryDirectory() as folder, etcd_cluster(Path(folder), 1) as etcd:
        client = EtcdClient(etcd.addresses)
        shared = Shared(client, "/rdzv")
        await settle_format(client, shared.prefix, SHARDS)
        store = await shared.lead()
        await store.append(_records(), EVENTS)
        root = shared.prefix.encode() + b"/"
        found = (await client.range(root, end_of(root)))[0]
        await client.close()
    keys = {key.key.decode().removeprefix(shared.prefix): b64encode(key.value).decode() for key in found}
    kept = {key: value for key, value in keys.items() if key != "/leader"}
    (FOLDER / f"etcd-format-{FORMAT}.json").write_text(json.dumps(kept, indent=0) + "\n")


if __name__ == "__main__":
    asyncio.run(_write_file())
    asyncio.run(_write_etcd())
