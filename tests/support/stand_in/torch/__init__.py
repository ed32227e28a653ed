"""Replacement for torch in tests of the workers' store: the calls that they make, without an import that takes a
second.
"""
