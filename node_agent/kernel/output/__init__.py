"""Output of the workers: to the console, to files, or to both."""
