"""A pytest plug-in: tests that wait for other processes run between tests that compute.

In the order of the folders, the last minutes of the suite would only wait, with idle processors.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
COMPUTING = tuple(TESTS / name for name in ("golden", "property", "simulation", "unit"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items[:] = _spread(items)


def _spread(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that compute, file by file, and after each file its share of the tests that wait."""
    computing = [item for item in items if _computes(item.path)]
    waiting = [item for item in items if not _computes(item.path)]
    begun, placed = 0, 0
    for _, file in groupby(computing, lambda item: item.path):
        yield from (of_file := list(file))
        begun += len(of_file)
        share = len(waiting) * begun // len(computing)
        yield from waiting[placed:share]
        placed = share
    yield from waiting[placed:]


@cache  # each test of a file asks
def _computes(file: Path) -> bool:
    return any(file.is_relative_to(folder) for folder in COMPUTING)
