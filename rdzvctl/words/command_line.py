"""Messages about the command line."""

from collections.abc import Sequence

from rdzv_protocol.words.flags import did_you_mean


def see_help(why: str, program: str) -> str:
    return f"{why} (see {program} --help)"


def no_flag(flag: str, known: Sequence[str]) -> str:
    return f"no flag {flag}{did_you_mean(flag, known)}"


def asks_nothing(flag: str, program: str) -> str:
    """A flag that answers a question in advance."""
    return f"{program} does not ask: leave {flag} out"


def surplus(arguments: Sequence[str]) -> str:
    return f"unrecognized arguments: {' '.join(arguments)}"


def no_command(command: str, known: Sequence[str]) -> str:
    return f"no command {command!r}{did_you_mean(command, known)}"


def not_whole(text: str) -> str:
    return f"expected a whole number, not {text!r}"


def not_within(most: int, text: str) -> str:
    return f"expected a number from 1 to {most}, not {text!r}"
