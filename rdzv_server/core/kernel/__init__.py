"""The rules of one run: what a rendezvous is. It knows no policy by name."""
