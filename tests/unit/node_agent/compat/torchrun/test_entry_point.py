"""The entry point within a user's process: what it imports."""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

LOADED = """
import sys
from node_agent.compat.torchrun import entry_point
assert entry_point.get_handler() is entry_point.create_handler
heavy = {"rdzv_protocol", "torch", "httptools", "msgpack", "asyncio"}
print(sorted({name.partition(".")[0] for name in sys.modules} & heavy))
"""


def run(program: str, cwd: Path) -> str:
    """Return the output of a program that finds the user's modules in `cwd`."""
    done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_rendezvous_backend_is_a_declared_entry_point() -> None:
    (ours,) = {entry.value for entry in entry_points(group="torchrun.handlers", name="rdzv-server")}
    assert ours == "node_agent.compat.torchrun.entry_point:get_handler"


def test_the_entry_point_imports_nothing_into_the_users_process(tmp_path: Path) -> None:
    assert run(LOADED, tmp_path) == "[]"


def test_a_users_module_called_protocol_never_meets_ours(tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text("WHOSE = 'the user'\n")
    ours = "import node_agent.compat.torchrun.entry_point, node_agent.compat.api.elastic_launch"
    assert run(f"import protocol; {ours}; print(protocol.WHOSE)", tmp_path) == "the user"
