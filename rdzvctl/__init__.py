"""Command line of operators: `rdzvctl` asks `rdzv-server` over HTTP how its runs are, and acts on them.

It knows the server by its HTTP API alone: answers are plain maps, in which fields of newer servers do no harm.
"""
