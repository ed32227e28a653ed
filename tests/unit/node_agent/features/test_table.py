"""The table of features: flags in one place each, and features that are imported only if they are on."""

import subprocess
import sys

import pytest

from node_agent.features.feature import Feature, load
from node_agent.features.table import OPTIONS, UNASKED

HEAVY = [options.feature for options in OPTIONS]
IMPORTED = """
import sys
import node_agent.agent, node_agent.cli.main
print(*(name for name in sys.argv[1:] if name in sys.modules))
"""


@pytest.mark.parametrize("name", [*HEAVY, *(name for name, _ in UNASKED)])
def test_every_feature_is_there(name: str) -> None:
    assert issubclass(load(name), Feature)  # type: ignore[arg-type]


def test_an_agent_without_features_imports_none() -> None:
    modules = [name.partition(":")[0] for name in HEAVY]
    done = subprocess.run([sys.executable, "-c", IMPORTED, *modules], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("options", OPTIONS)
def test_a_feature_is_off_without_its_flags(options: type) -> None:
    assert not options().is_on
