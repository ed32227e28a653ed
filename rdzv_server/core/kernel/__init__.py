"""The rules of one run: what a rendezvous is. The kernel knows no policy by name."""
