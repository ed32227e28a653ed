"""Modules that tests need, but whose import in this process is late or unnecessary: some take longer than most tests.

Each of pytest-xdist's processes collects all tests.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def need(*modules: str) -> None:
    """Skip the test if one of these modules, which other processes import, is not installed."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


class LazyModule:
    """A module that is imported on first use, and not when the tests are collected.

    pytest asks every name in a file of tests for `__test__` and the like, which no module here has.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
