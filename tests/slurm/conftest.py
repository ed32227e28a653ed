"""One Slurm of four nodes for all tests."""

from collections.abc import Iterator

import pytest

from tests.support.slurm import Slurm, slurm_cluster


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=4) as slurm:
        yield slurm


@pytest.fixture
def slurm(running: Slurm) -> Iterator[Slurm]:
    """Slurm with four idle nodes. No job is left after the test."""
    yield running
    running.repair()
