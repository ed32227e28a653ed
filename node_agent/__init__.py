"""The agent of a node: joins a run, spawns the node's workers and supervises them.

`core` decides and knows no processes and no sockets; everything beside it is the shell that carries its decisions out.
Nothing here imports torch, and nothing on the way to the first worker imports what that worker does not need.
"""
