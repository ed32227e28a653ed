"""Network test of the nodes of a round, in pairs, before the round starts."""
