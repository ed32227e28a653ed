"""Compatibility with torch: its Python API, its rendezvous handler, and TorchX components."""
