"""Fixture that skips chaos where it is impossible."""

import pytest

from tests.chaos import disk
from tests.hosts import namespaces


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip where hosts of network namespaces or slow disks are impossible; remove hosts of an earlier run."""
    if reason := namespaces.why_impossible() or disk.why_impossible():
        pytest.skip(reason)
    namespaces.remove_leftovers()
