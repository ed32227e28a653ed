"""Errors in the words of a command line."""

from collections.abc import Sequence

NO_SCRIPT = "the following arguments are required: SCRIPT, ..."
SCRIPT_IS_EMPTY = "SCRIPT is empty: a shell variable in the command is probably not set"


def see_help(message: str) -> str:
    return f"{message} (node-agent --help-all explains every flag)"


def script_taken_for_value(flag: str, metavar: str, script: str) -> str:
    return f"{NO_SCRIPT}; {flag} has taken {script} as its value: write {flag} {metavar} {script}"


def unknown_argument(word: str, meant: str) -> str:
    """`meant`: end of the sentence, about the flag that the user probably meant."""
    return f"unrecognized arguments: {word}{meant}"


def flag_of_server(flag: str) -> str:
    return f"{flag} is a flag of rdzv-server: give it to the command that starts the server"


def ambiguous_flag(name: str, flags: Sequence[str]) -> str:
    return f"ambiguous option: {name} could match {', '.join(flags)}"


def key_has_another_name(source: str, key: str, name: str) -> str:
    return f"{source}: {key}: use {name} instead"


def misspelt_variable(variable: str, meant: str) -> str:
    """`meant`: end of the sentence, about the variable that the user probably meant."""
    return f"ignoring {variable}{meant}"


def key_is_a_flag(flag: str) -> str:
    """End of the sentence about an unknown key."""
    return f"; give {flag} instead"


def unknown_keys(source: str, given: Sequence[str], meant: str) -> str:
    """`meant`: end of the sentence, about what the user probably meant."""
    return f"{source}: ignoring unknown {', '.join(given)}{meant}"
