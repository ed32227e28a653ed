"""Where the workers' output goes: to the console, to files, or to both."""
