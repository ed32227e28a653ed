"""Input that nobody meant to send: what the server answers to it, and that it is none the worse afterwards."""
