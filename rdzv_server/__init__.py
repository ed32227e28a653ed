"""The rendezvous service: membership rounds, admission, restart counters and the operators' pages.

`core` decides and uses no sockets. Everything beside it is the shell that carries out its decisions.
"""
