"""Imports schemathesis whole before anything is collected, with the collector off.

Otherwise parts of it are imported, and rewritten by pytest, in the middle of a test; CPython 3.11 may then fail with
"AST constructor recursion depth mismatch", when the collector runs while a module is parsed (cpython#106905).
"""

import gc
import importlib

gc.disable()
importlib.import_module("schemathesis.specs.openapi.schemas")
gc.enable()
