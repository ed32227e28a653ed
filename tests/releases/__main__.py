"""Record the present version into its folder (`make recording`), or with `--check` say if that has to be done."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rdzv_protocol import VERSION

from rdzvctl.contexts import Contexts
from tests.releases import FILES, FOLDER, state, wire
from tests.releases.promises import promises
from tests.support.programs import ended_programs
from tests.unit.node_agent.cli.test_arguments import GOOD

CONTEXTS = {
    "lab": {"endpoint": "a:29400,b:29400", "token_file": "/home/me/lab.token", "tls_ca": "system"},
    "two words": {"endpoint": "[::1]:29400"},
}
"""Contexts of rdzvctl in the recorded configuration file. The first one is the current one."""


async def record() -> None:
    folder = FOLDER / VERSION
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        async with ended_programs():
            steps = await wire.record(Path(temporary))
            known = await state.record(Path(temporary), folder / "state.db")
    (folder / "wire.json").write_bytes(wire.written(steps))
    Contexts(str(folder / "config.toml"), next(iter(CONTEXTS)), CONTEXTS).write()
    recorded = {**promises(GOOD), "state": known, "contexts": CONTEXTS}
    (folder / "promises.json").write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"recording: {folder}: {len(steps)} messages, a state file and a configuration file")


def unrecorded(version: str, present: dict[str, Any]) -> str:
    """Return what the recording of a version lacks, empty if nothing. `present`: what that version promises."""
    for name in FILES:
        if not (FOLDER / version / name).is_file():
            return f"tests/releases/{version}/{name} is missing: make recording"
    recorded = json.loads((FOLDER / version / "promises.json").read_text())
    del recorded["state"], recorded["contexts"]
    return "" if recorded == present else f"tests/releases/{version}/promises.json is out of date: make recording"


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tests.releases", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="record nothing; exit with 1 and the reason if it has to be done"
    )
    if parser.parse_args().check:
        sys.exit(unrecorded(VERSION, json.loads(json.dumps(promises(GOOD)))) or 0)
    asyncio.run(record())
