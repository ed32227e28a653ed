"""The launcher as a library: `elastic_launch` and `start_processes`, as in torch.

Programs import these names from `node_agent`. A worker that runs a function imports only `child`.
"""
