"""README's two commands in containers of new systems that have neither make nor Python: `make check-fresh`.

Debian's systems are made from its packages, and Ubuntu's are pulled from a registry. Each takes ten minutes, with
PyTorch and all that `make test` installs, so these tests run only if `FRESH` is set.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.container_engine import CERTIFICATES, ContainerEngine, bare_engine

pytestmark = [
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(not os.environ.get("FRESH"), reason="takes ten minutes for each system: make check-fresh"),
]

ROOT = Path(__file__).parents[2]
SCRIPT = "tests/fresh/two-commands.sh"
DEBIAN = ("bullseye", "bookworm", "trixie")
UBUNTU = ("22.04", "24.04")
"""The oldest of each has a Python that is too old."""
PATIENCE_S = 3_500.0


@pytest.fixture(scope="module")
def engine() -> Iterator[ContainerEngine]:
    with bare_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are committed here."""
    folder = tmp_path_factory.mktemp("checkout")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    return folder


@pytest.mark.parametrize("release", DEBIAN)
def test_on_a_new_debian(release: str, engine: ContainerEngine, checkout: Path) -> None:
    engine.make_system(release, release)
    both_run(engine, release, checkout)


@pytest.mark.parametrize("release", UBUNTU)
def test_on_a_new_ubuntu(release: str, engine: ContainerEngine, checkout: Path) -> None:
    image = f"docker.io/library/ubuntu:{release}"
    pulled = engine.call("pull", image, check=False)
    if pulled.returncode != 0:
        pytest.skip(f"{image} cannot be pulled: {pulled.stderr.strip().splitlines()[-1]}")
    both_run(engine, image, checkout)


def both_run(engine: ContainerEngine, image: str, checkout: Path) -> None:
    """Run the script in a container that reaches a package index as this machine does."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    volumes = {path: path for path in (str(checkout), *settings.values()) if os.path.isabs(path)}
    volumes[CERTIFICATES] = settings["PIP_CERT"] = "/certificates.crt"
    words = [f"--volume={path}:{there}:ro" for path, there in volumes.items()]
    words += [f"--env={name}={value}" for name, value in settings.items()]
    done = engine.call(
        "run", "--rm", "--network=host", "--privileged", "--tmpfs=/small:size=32m,exec", "--workdir=/root",
        *words, image, f"{checkout}/{SCRIPT}", str(checkout), check=False, within_s=PATIENCE_S,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0
