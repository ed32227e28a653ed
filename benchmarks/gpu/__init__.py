"""What node-agent does on real GPUs: `make gpu-check`, on a machine with one or more of them."""
