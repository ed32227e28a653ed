"""Stand-in for torch in tests of the workers' store: the calls that they make, without a second's import."""
