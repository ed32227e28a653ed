"""Failure handling: evidence of a worker's end, its diagnosis, error files, the final report."""
