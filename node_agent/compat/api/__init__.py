"""The launcher as a library: `elastic_launch` and `start_processes`, as torch has them.

The names that programs use stand in `node_agent` itself; a worker that runs a function imports `child` alone.
"""
