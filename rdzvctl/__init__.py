"""Command line of operators: `rdzvctl` shows the runs of `rdzv-server` over HTTP, and acts on them.

It knows the server only by its HTTP API: answers are plain maps, in which fields of newer servers are harmless.
"""
