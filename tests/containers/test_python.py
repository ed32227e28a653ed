"""The wheel on the newest Python: the agent's image, on another base image."""

import re
from pathlib import Path

import pytest

from tests.support.container_engine import ContainerEngine

pytestmark = [pytest.mark.xdist_group("containers"), pytest.mark.timeout(900)]

PYTHON = "3.14"
HELLO = Path(__file__).parents[2] / "examples" / "hello.py"


@pytest.fixture(scope="module")
def image(built: ContainerEngine) -> str:
    base = f"docker.io/library/python:{PYTHON}-slim"
    built.make_base(base)
    built.build("train", "--target", "agent", "--build-arg", f"AGENT_BASE={base}")
    return "train"


async def test_a_run_in_the_users_own_image(image: str, engine: ContainerEngine) -> None:
    run = await engine.run(
        "run", "--volume", f"{HELLO}:/hello.py:ro", image, "--standalone", "--nproc", "2", "/hello.py"
    )
    assert await run.exit_code() == 0
    assert sorted(re.findall(r"rank (\d) of 2", "\n".join(run.out))) == ["0", "1"]
    shell = ("run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c")
    assert f"Python {PYTHON}." in engine.call(*shell, "pip check && python --version").stdout
