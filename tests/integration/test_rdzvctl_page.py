"""The commands of docs/reference/rdzvctl.md have the documented effect when run in order."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.cluster import PATIENT, Cluster
from tests.support.rdzvctl import rdzvctl

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "rdzvctl.md").read_text()


def block(section: str) -> list[list[str]]:
    """Return the words of the `rdzvctl` commands in the first console block of a section."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"```console\n(.*?)```", text, re.DOTALL)[0].splitlines()
    return [shlex.split(line, comments=True)[2:] for line in lines if line.startswith("$ rdzvctl")]


@pytest.fixture
async def started(cluster: Cluster) -> Cluster:
    """A run r1 on two nodes, node-7 and node-8."""
    for name in ("node-7", "node-8"):
        await cluster.node(name, "--run-id", "r1", "--nnodes", "1:2", *PATIENT, nproc=1)
    await cluster.hub.group(2)
    return cluster


async def test_questions(started: Cluster) -> None:
    commands = block("Questions")
    assert len(commands) > 5
    for words in commands:
        assert (await rdzvctl(*words, endpoint=started.endpoint)).lines, words


async def test_actions(started: Cluster) -> None:
    """The drained node leaves. The run continues with the other one, until it is stopped and forgotten."""
    drain, uncordon, resize, restart, stop, forget = block("Actions")
    for words in (drain, uncordon, resize):
        assert (await rdzvctl(*words, endpoint=started.endpoint)).lines, words
        if words is drain:
            await started.agents.pop("node-7").exit_code()
            await started.hub.group(1)
    assert (await started.server.run())["max_nodes"] == 4
    assert (await rdzvctl(*restart, endpoint=started.endpoint)).lines
    await started.hub.group(1)
    assert (await rdzvctl(*stop, endpoint=started.endpoint)).lines
    assert await started.agents.pop("node-8").exit_code() == 1
    assert "run r1 is forgotten" in (await rdzvctl(*forget, endpoint=started.endpoint)).lines[0]


async def test_contexts(cluster: Cluster, tmp_path: Path) -> None:
    env = {"RDZV_CONFIG": str(tmp_path / "config.toml")}
    (tmp_path / "lab.token").write_text("0123456789abcdef0123456789abcdef\n")
    for words in block("Choose a server"):
        if "--tls-ca" in words:
            del words[words.index("--tls-ca") :]
        given = [cluster.endpoint if "29400" in word else word.replace("~", str(tmp_path)) for word in words]
        assert (await rdzvctl(*given, env=env)).lines, words
