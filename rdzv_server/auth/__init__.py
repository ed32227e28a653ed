"""Authorization of agents and operators: tokens, TLS, and their reload on SIGHUP."""
