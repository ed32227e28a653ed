"""The entry point within a process that is the user's: what it imports, and whose `protocol` is whose."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

LOADED = """
import sys
from node_agent.plugins import torchrun
assert torchrun.get_handler() is torchrun.create_handler
print(sorted({name.partition(".")[0] for name in sys.modules} & {"protocol", "torch", "h11", "msgpack", "asyncio"}))
"""

SHARED = """
import sys
{before}
from node_agent.own_protocol import our_protocol
with our_protocol():
    from protocol.errors import AgentFenced
    from node_agent.client import HttpLink
    import protocol
    assert protocol.VERSION
import protocol
assert protocol.WHOSE == "the user", protocol
assert not [name for name in sys.modules if name.startswith("protocol.")]
from node_agent import client
assert client.HttpLink is HttpLink and client.paths.JOIN
leave = client.LeaveRequest(run_id="r", agent_id="a", reason="done")
assert client.decode(client.LeaveRequest, client.encode(leave)) == leave
"""


def run(program: str, cwd: Path) -> str:
    """The output of a program that finds the user's modules in `cwd`."""
    done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_declared() -> None:
    (ours,) = {entry.value for entry in entry_points(group="torchrun.handlers", name="rdzv-server")}
    assert ours == "node_agent.plugins.torchrun:get_handler"


def test_loading_it_brings_nothing_into_the_users_process(tmp_path: Path) -> None:
    assert run(LOADED, tmp_path) == "[]"


@pytest.mark.parametrize("before", ["", "import protocol"], ids=["unused", "in use"])
def test_the_users_protocol_stays_the_users(before: str, tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text("WHOSE = 'the user'\n")
    run(SHARED.format(before=before), tmp_path)


def test_a_package_of_the_users_comes_back_with_its_modules(tmp_path: Path) -> None:
    (tmp_path / "protocol").mkdir()
    (tmp_path / "protocol" / "__init__.py").write_text("WHOSE = 'the user'\n")
    (tmp_path / "protocol" / "errors.py").write_text("MINE = True\n")
    run(
        """
import protocol.errors, sys
mine = protocol.errors
from node_agent.own_protocol import our_protocol
with our_protocol():
    from protocol.errors import AgentFenced
assert sys.modules["protocol.errors"] is mine and mine.MINE
""",
        tmp_path,
    )
