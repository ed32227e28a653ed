"""Failures: diagnosis of a worker's end, error files, and the final report."""
