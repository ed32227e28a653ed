"""What makes the agent a drop-in: the Python API of torch, its rendezvous handler, and components of TorchX."""
