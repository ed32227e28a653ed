"""The runs of a server: attempts, how long each is remembered, and what all may take together."""
