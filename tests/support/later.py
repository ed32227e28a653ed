"""A module that is imported when something of it is asked for, and not when the tests are collected.

Each of pytest-xdist's processes collects all tests. An import of torch in each of them takes longer than most tests.
"""

from importlib import import_module
from typing import Any


class Later:
    """Stands for the module of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
