"""Imports schemathesis completely when it is needed, with the garbage collector off.

Each of pytest-xdist's processes collects all tests, and one runs those that need the import, which takes long. Parts of
it are imported late and rewritten by pytest. CPython 3.11 may then fail with "AST constructor recursion depth mismatch"
if the collector runs while a module is parsed (cpython#106905).
"""

import gc
from importlib import import_module

import pytest


@pytest.fixture
def fuzzer_class() -> type:
    """Return `tests.fuzz.api.Fuzzer`."""
    gc.disable()
    try:
        import_module("schemathesis.specs.openapi.schemas")
        found: type = import_module("tests.fuzz.api").Fuzzer
    finally:
        gc.enable()
    return found
