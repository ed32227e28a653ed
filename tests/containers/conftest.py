"""One container engine with the images of deploy/docker for all tests."""

from collections.abc import Iterator

import pytest

from tests.support.container_engine import ContainerEngine, container_engine


@pytest.fixture(scope="session")
def built() -> Iterator[ContainerEngine]:
    with container_engine() as engine:
        engine.build("rdzv-server", "--target", "server")
        engine.build("rdzv-agent", "--target", "agent")
        yield engine


@pytest.fixture
def engine(built: ContainerEngine, programs: None) -> Iterator[ContainerEngine]:
    """The engine with the images `rdzv-server` and `rdzv-agent`. No container is left after the test."""
    yield built
    built.remove_all()
