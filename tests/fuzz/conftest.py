"""Imports schemathesis whole before anything is collected, while the collector of garbage is off.

Otherwise parts of it are imported, and rewritten by pytest, in the middle of a test; CPython 3.11 may then fail with
"AST constructor recursion depth mismatch", when the collector runs while a module is parsed (cpython#106905).
"""

import importlib

importlib.import_module("schemathesis.specs.openapi.schemas")
