"""An agent's description of itself: versions, machine and environment, and no secret."""

import platform
import subprocess
import sys

import pytest
import rdzv_protocol
from rdzv_protocol.queries import LONGEST_VALUE, MOST_VARIABLES, Variable

from node_agent.features.description import describe

SECRET = "hunter2hunter2"


def test_an_agents_description_has_versions_and_machine() -> None:
    found = describe({})
    versions = {each.name: each.version for each in found.versions}
    assert (versions["node-agent"], versions["python"]) == (rdzv_protocol.VERSION, platform.python_version())
    assert found.system.startswith(f"{platform.system()} ") and found.cpus >= 1
    assert found.variables == ()


def test_torch_is_not_imported_for_its_version() -> None:
    code = (
        "import sys; from node_agent.features.description import describe; "
        "print(dict((each.name, each.version) for each in describe({}).versions)['torch'], 'torch' in sys.modules)"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    version, is_imported = done.stdout.rsplit(maxsplit=1)
    assert is_imported == "False" and version.split(".")[0].isdigit()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("NCCL_DEBUG", "INFO", "INFO"),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "1"),
        ("PET_NNODES", "2", "2"),
        ("NCCL_LONG", 2 * LONGEST_VALUE * "x", LONGEST_VALUE * "x"),
        ("HOME", "/root", None),
        ("HF_TOKEN", SECRET, None),
        ("TORCH_AUTH_TOKEN", SECRET, None),
        ("PET_RDZV_CONF", f"token={SECRET}", None),
        ("PET_TOKEN_FILE", "/etc/token", None),
        ("NCCL_SOCKET", f"http://me:{SECRET}@proxy", None),
        ("LAB_SETTINGS", SECRET, None),
    ],
)
def test_only_variables_of_torch_and_its_libraries_have_values_and_secrets_are_redacted(
    name: str, value: str, told: str | None
) -> None:
    found = describe({name: value})
    assert found.variables == (Variable(name=name, value=told),)
    assert SECRET not in repr(found)


def test_among_very_many_variables_those_with_values_come_first() -> None:
    many = {f"SERVICE_{number}_PORT": "1" for number in range(2 * MOST_VARIABLES)} | {"TORCH_LOGS": "+dynamo"}
    found = describe(many | {"x" * 2 * LONGEST_VALUE: "1"})
    assert len(found.variables) == MOST_VARIABLES and Variable(name="TORCH_LOGS", value="+dynamo") in found.variables
