"""The rendezvous service: membership rounds, admission, restart counters and the operators' pages.

`core` decides and knows no sockets; everything beside it is the shell that carries its decisions out.
"""
