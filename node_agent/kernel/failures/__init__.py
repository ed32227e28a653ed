"""Failure handling: diagnosis of a worker's end, error files, the final report."""
