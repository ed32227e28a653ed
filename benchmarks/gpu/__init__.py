"""Checks of node-agent on real GPUs: `make gpu-check`, on a machine with one or more of them."""
