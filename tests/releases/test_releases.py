"""Today's programs keep the promises of every released version: docs/reference/support-stability.md."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from node_agent.cli.arguments import FLAGS
from rdzvctl.contexts import choose, load
from tests.releases import FOLDER, VERSIONS, wire
from tests.releases.__main__ import unrecorded
from tests.releases.promises import broken, meaning, of_variable, promises
from tests.releases.state import summary
from tests.support.programs import Server
from tests.unit.node_agent.cli.test_arguments import GOOD

PARTS = (
    "flags of rdzv-server",
    "flags of rdzvctl",
    "exit codes",
    "Python API",
    "HTTP API",
    "messages",
    "events",
    "metrics",
)

pytestmark = pytest.mark.usefixtures("programs")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Path:
    """The folder of a released version."""
    return FOLDER / str(request.param)


def promised(version: Path) -> dict[str, Any]:
    return dict(json.loads((version / "promises.json").read_text()))


@pytest.mark.parametrize("part", PARTS)
def test_existing_promises_still_hold(version: Path, part: str) -> None:
    assert broken(promised(version)[part], promises(GOOD)[part]) == []


def test_a_flag_has_the_same_meaning_in_every_spelling_and_as_a_variable(version: Path) -> None:
    for argument, flag in promised(version)["flags of node-agent"].items():
        assert argument in FLAGS, f"{argument} is gone"
        found = {spelling: meaning(spelling, flag["example"], argument) for spelling in flag["spellings"]}
        if flag["variable"]:
            found[flag["variable"]] = of_variable(flag["variable"], flag["example"], argument)
        assert [line for name, now in found.items() for line in broken(flag["means"], now, name)] == []


async def test_a_server_continues_with_the_run_in_its_state_file(version: Path, tmp_path: Path) -> None:
    shutil.copy(version / "state.db", tmp_path)
    server = await Server.listen("--store", f"sqlite:{tmp_path}/state.db")
    assert summary(await server.run()) == promised(version)["state"]


def test_rdzvctl_reads_its_configuration_file(version: Path, tmp_path: Path) -> None:
    shutil.copy(version / "config.toml", tmp_path)
    found, contexts = load(str(tmp_path / "config.toml")), promised(version)["contexts"]
    assert (found.current, found.contexts) == (next(iter(contexts)), contexts)
    for name, fields in contexts.items():
        place = choose({"context": name}, {"RDZV_CONFIG": found.path})
        assert {key: getattr(place, key) for key in fields if key != "endpoint"} == {
            key: value for key, value in fields.items() if key != "endpoint"
        }
        assert len(place.endpoints) == len(fields["endpoint"].split(","))


async def test_a_server_answers_its_agents_as_its_server_did(version: Path) -> None:
    steps = wire.load(version / "wire.json")
    server = await Server.listen("--store", "memory")
    found = await wire.answers_of(server, steps)
    for step in steps:
        if isinstance(step, wire.Answer):
            status, answer = found[step.number]
            assert status == step.status, answer
            assert broken(wire.fixed(msgpack.decode(step.body)), wire.fixed(answer), f"answer {step.number}") == []
    assert (await server.run())["phase"] == "succeeded"


async def test_agents_follow_their_servers_directives(version: Path, tmp_path: Path) -> None:
    """Each agent alone, with the answers that the agent of its node was given."""
    steps = wire.load(version / "wire.json")
    (script := tmp_path / "script.py").write_text(wire.SCRIPT)
    for rank, node in enumerate(wire.NODES):
        async with wire.RecordedServer(steps, node) as server:
            agent = await wire.agent_of(node, server.endpoint, script)
            code = await agent.exit_code()
        assert (code, server.unknown) == (0, [])
        assert agent.out[-1] == f"rank {rank} of 2, restart 1"


def test_a_version_without_its_recording_is_not_released() -> None:
    assert unrecorded("0.0.0", {}) == "tests/releases/0.0.0/promises.json is missing: make recording"
    recorded = promised(FOLDER / VERSIONS[-1])
    del recorded["state"], recorded["contexts"]
    assert unrecorded(VERSIONS[-1], recorded) == ""
    assert unrecorded(VERSIONS[-1], {**recorded, "exit codes": {}}).endswith("is out of date: make recording")


@pytest.mark.parametrize(
    ("then", "now", "lines"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, 0),
        ({"a": 1}, {"b": 1}, 1),
        ({"a": 1}, {"a": 2}, 1),
        (["x"], ["y", "x"], 0),
        (["x"], ["y"], 1),
        ({"a": "optional"}, {"a": "optional", "b": "optional"}, 0),
        ({"a": "optional"}, {"a": "required"}, 1),
        ({}, {"a": "required"}, 1),
        ({}, {"a": ["KEYWORD_ONLY", "required"]}, 1),
        ([{"a": 1}], [{"a": 1, "b": 2}], 0),
        ([{"a": 1}], [{"a": 2}], 1),
    ],
)
def test_broken_promises_are_found(then: Any, now: Any, lines: int) -> None:
    assert len(broken(then, now)) == lines
