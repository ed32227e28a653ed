"""Record the present version into its folder (`make recording`), or with `--check` say if that has to be done."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rdzv_protocol import VERSION

from tests.releases import FILES, FOLDER, state, wire
from tests.releases.promises import promises
from tests.support.programs import ended_programs
from tests.unit.node_agent.cli.test_arguments import GOOD


async def record() -> None:
    folder = FOLDER / VERSION
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        async with ended_programs():
            steps = await wire.record(Path(temporary))
            known = await state.record(Path(temporary), folder / "state.db")
    (folder / "wire.json").write_bytes(wire.written(steps))
    (folder / "promises.json").write_text(json.dumps({**promises(GOOD), "state": known}, indent=1) + "\n")
    print(f"recording: {folder}: {len(steps)} messages, and a state file")


def unrecorded(version: str, present: dict[str, Any]) -> str:
    """Return what the recording of a version lacks, empty if nothing. `present`: what that version promises."""
    for name in FILES:
        if not (FOLDER / version / name).is_file():
            return f"tests/releases/{version}/{name} is missing: make recording"
    recorded = json.loads((FOLDER / version / "promises.json").read_text())
    recorded.pop("state")
    return "" if recorded == present else f"tests/releases/{version}/promises.json is out of date: make recording"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(unrecorded(VERSION, json.loads(json.dumps(promises(GOOD)))) or 0)
    asyncio.run(record())
