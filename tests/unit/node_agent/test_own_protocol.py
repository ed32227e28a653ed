"""`protocol` is a common name: what of ours runs in another program must have ours before the name is the program's."""

import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[3] / "node_agent"
PROGRAMS = ("__main__", "cli", "launch", "plugins")
"""What runs in programs of its own, or imports ours for itself."""

LOADED = """
import sys
import node_agent
for name in node_agent.__all__:
    getattr(node_agent, name)
print(*sys.modules)
"""

TWICE = """
import sys
from node_agent.own_protocol import our_protocol
with our_protocol():
    from protocol.messages import Reply
assert "protocol" not in sys.modules
with our_protocol():
    from protocol.messages import Reply as again
    from protocol.errors import AgentFenced
assert again is Reply, "one copy of ours, however often it is needed"
assert "protocol.errors" not in sys.modules
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=AGENT.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs_protocol() -> list[str]:
    """Modules of the agent that import `protocol`, or the server, which does."""
    found = []
    for path in sorted(AGENT.rglob("*.py")):
        parts = path.relative_to(AGENT).with_suffix("").parts
        lines = path.read_text().splitlines()
        if parts[0] not in PROGRAMS and any(line.startswith(("from protocol", "from rdzv_server")) for line in lines):
            found.append(".".join(("node_agent", *parts)))
    return found


def test_the_api_has_all_of_it_before_the_name_is_the_programs() -> None:
    loaded = set(run(LOADED).split())
    assert "protocol" not in loaded
    assert [module for module in needs_protocol() if module not in loaded] == []


def test_ours_is_the_same_each_time() -> None:
    run(TWICE)


@pytest.mark.parametrize("module", ["node_agent.api.child", "node_agent"])
def test_workers_do_without(module: str) -> None:
    """A worker is the program's own, and finds its `protocol` when it first looks."""
    assert "protocol" not in run(f"import sys, {module}; print(*sys.modules)").split()
