"""The one way in which a command line is refused."""


class UsageError(Exception):
    """What was asked for makes no sense. One line: which flag or variable, why, and what to do."""
