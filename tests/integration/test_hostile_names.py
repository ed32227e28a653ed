"""Run ids and node ids that look like paths, commands, patterns or markup: they affect only their own run."""

import asyncio
import os
from pathlib import Path

import pytest
from rdzv_protocol.errors import AgentFenced
from rdzv_protocol.messages import LeaveRequest
from rdzv_protocol.text import printable

from node_agent import words
from node_agent.kernel.transport.http import HttpTransport
from tests.support.programs import Program, Server, start_agent
from tests.support.scenario import RUN_ID, a_join

GHOST = "\N{GHOST}"
NAMES = [
    "../../etc/passwd",
    "a/../b",
    "/etc/cron.d/evil",
    "..",
    ".",
    "~root",
    "-rf",
    "--help",
    " ",
    "con",
    "nul.txt",
    "%00",
    "%2e%2e%2f",
    "${rank}%s{0}",
    "$(touch evil)",
    "`touch evil`; touch evil #",
    '"; DROP TABLE records; --',
    '{run="x"} 1',
    "<script>alert(1)</script>",
    "* ? [a-z]",
    "http://169.254.169.254/",
    "NAME=value",
    "\N{COMBINING ACUTE ACCENT}\N{HEBREW LETTER ALEF}\N{FULLWIDTH SOLIDUS}",
    GHOST * 128,
]
"""Names that all work."""

REFUSED = {
    "empty": "",
    "a line break": "a\nb",
    "an escape": "a\x1b[2Jb",
    "written backwards": "a\N{RIGHT-TO-LEFT OVERRIDE}b",
    "no text": os.fsdecode(b"a\xffb"),
    "too long": GHOST * 129,
    "nothing to see": "\N{HANGUL FILLER}\N{VARIATION SELECTOR-16}",
    "stacked marks": "a" + 5 * "\N{COMBINING ACUTE ACCENT}",
}

SCRIPT = """\
import os, sys
print(os.environ["TORCHELASTIC_RUN_ID"], flush=True)
sys.stderr.write("done\\n")
"""

PARALLEL = 4


class Place:
    """A folder deep in another one, so that a path out of it still ends where the test looks."""

    def __init__(self, root: Path) -> None:
        self.root, self.home = root, root / "a" / "b" / "c"
        self.logs, self.state, self.temporary = self.home / "logs", root / "state", root / "tmp"
        for folder in (self.logs, self.state, self.temporary):
            folder.mkdir(parents=True)
        self.script = root / "script.py"
        self.script.write_text(SCRIPT)

    async def run(self, endpoint: str, run_id: str, node_id: str = "node") -> Program:
        """Run an agent that writes all possible files."""
        return await start_agent(
            f"--run-id={run_id}", f"--node-id={node_id}", f"--endpoint={endpoint}", "--connect-timeout=10",
            "--log-dir", "logs", "--redirects", "3", "--tee", "3", "--event-log-handler", "console",
            script=self.script, cwd=self.home,
            env={"HOME": str(self.home), "TMPDIR": str(self.temporary), "TORCHELASTIC_ERROR_FILE": "error.json"},
        )  # fmt: skip

    def leftovers(self) -> list[str]:
        """Return the files in wrong places."""
        ours = (self.logs, self.state, self.script)
        everything = [path for path in self.root.rglob("*") if not path.is_dir()]
        return [str(path) for path in everything if not any(path.is_relative_to(place) for place in ours)]

    def outputs(self) -> list[str]:
        """Return the files that the workers wrote, by the folders that agents make."""
        return sorted(path.read_text() for path in self.logs.glob("*/attempt_0/0/stdout.log"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
async def server(place: Place) -> Server:
    return await Server.listen("--store", f"sqlite:{place.state}/server.db")


async def runs_of(server: Server) -> dict[str, str]:
    return {run["run_id"]: run["phase"] for run in (await server.status())["runs"]}


async def test_any_printable_name_works_without_reaching_a_file(place: Place, server: Server) -> None:
    turns = asyncio.Semaphore(PARALLEL)

    async def run(name: str) -> None:
        async with turns:
            agent = await place.run(server.endpoint, name, node_id=name)
            assert await agent.exit_code() == 0, (name, agent.err)

    await asyncio.gather(*map(run, NAMES))
    assert place.outputs() == sorted(f"{name}\n" for name in NAMES)
    assert place.leftovers() == []
    assert await runs_of(server) == dict.fromkeys(NAMES, "succeeded")

    await server.end()
    again = await Server.listen("--store", f"sqlite:{place.state}/server.db")
    assert await runs_of(again) == dict.fromkeys(NAMES, "succeeded")


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
async def test_a_name_that_cannot_be_shown_is_refused_in_one_line(place: Place, server: Server, name: str) -> None:
    for flag, asked in (("--run-id", {"run_id": name}), ("--node-id", {"run_id": "r", "node_id": name})):
        agent = await place.run(server.endpoint, **asked)
        assert await agent.exit_code() == 2, agent.err
        assert len(agent.err) == 1 and agent.err[0].isprintable()
        assert agent.err[0].endswith(f"{flag}: {printable(words.values.not_a_name(name))}")
    assert await runs_of(server) == {}
    assert place.leftovers() == [] and place.outputs() == []


async def test_only_the_server_itself_writes_lines_of_its_log(server: Server) -> None:
    """They cannot move the cursor of a log's reader or of an agent's console either."""
    forged = "SIGTERM\n12:00:00 rdzv-server: run x round 7: all is well\x1b[2J"
    transport = HttpTransport("127.0.0.1", server.port, None)
    await transport.exchange(a_join("agent", node="n", addr=await transport.connect()))
    await transport.exchange(LeaveRequest(run_id=RUN_ID, agent_id="agent", reason=forged))
    with pytest.raises(AgentFenced):
        await transport.exchange(a_join("agent", node="n", after_round=3))
    await transport.close()
    await server.line("node n left: SIGTERM 12:00:00 rdzv-server: run x round 7: all is well")
    assert all(line.isprintable() for line in server.err)
    assert not any(line.startswith("12:00:00") for line in server.err)
