"""Fixture that skips chaos tests on machines where they are impossible."""

import pytest

from tests.chaos import disk
from tests.hosts import namespaces


@pytest.fixture(scope="session")
def possible() -> None:
    """Skip if network namespaces or slow disks are impossible. Remove hosts of an earlier run."""
    if reason := namespaces.why_impossible() or disk.why_impossible():
        pytest.skip(reason)
    namespaces.remove_leftovers()
