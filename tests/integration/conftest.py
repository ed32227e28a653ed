"""Fixtures of all tests with real programs."""

import pytest

from tests.support.cluster import Cluster
from tests.support.programs import TORCH_WORKER


@pytest.fixture(autouse=True)
def programs_end_with_each_test(programs: None) -> None:
    pass


@pytest.fixture(params=[pytest.param("plain"), pytest.param("torch", marks=pytest.mark.torch)])
def any_cluster(request: pytest.FixtureRequest, cluster: Cluster) -> Cluster:
    """The cluster with workers that do not notice each other's end, and with torch workers, which do.

    Those are warm: torch is imported once a node, not once a worker and round.
    """
    if request.param == "torch":
        pytest.importorskip("torch")
        cluster.script, cluster.agent_flags = TORCH_WORKER, ("--preload", "torch.distributed")
    return cluster
