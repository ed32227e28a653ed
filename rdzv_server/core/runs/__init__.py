"""The runs of a server: attempts, how long each is remembered, and the limits of all together."""
