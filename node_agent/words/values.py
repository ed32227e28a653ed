"""Values that the readers of flags, variables and settings accept, and the value that was given instead."""

from collections.abc import Sequence


def not_a_name(given: object) -> str:
    return f"expected 1 to 128 printable characters, not {given!r:.60}"


def not_modules(given: str) -> str:
    return f"expected names of modules, such as torch or torch,numpy.random, not {given!r:.60}"


def not_a_host(given: object) -> str:
    return f"expected a host's name or address, not {given!r:.60}"


def not_a_switch(given: object) -> str:
    return f"expected true, yes, on, 1 or false, no, off, 0, not {given!r}"


def not_a_whole_number(low: int, high: int, given: object, names: Sequence[str] = ()) -> str:
    """`names`: texts that are accepted too."""
    besides = f", {', '.join(names[:-1])} or {names[-1]}" if names else ""
    return f"expected a whole number from {low} to {high}{besides}, not {given!r}"


def not_a_number(low: float, high: float, given: object) -> str:
    return f"expected a number from {low:g} to {high:g}, not {given!r}"


def not_seconds(low: float, high: float, given: object) -> str:
    return f"expected a number of seconds from {low:g} to {high:g}, not {given!r}"


def not_a_pattern(given: str, reason: object) -> str:
    return f"{given!r:.80} is not a regular expression: {reason}"


def pattern_too_long(most: int, length: int) -> str:
    return f"expected a regular expression of at most {most} bytes, not of {length}"


def not_one_of(choices: Sequence[str], given: object) -> str:
    return f"expected {', '.join(choices[:-1])} or {choices[-1]}, not {given!r}"


def not_a_place(given: object) -> str:
    return f"expected a port from 0 to 65535, or HOST:PORT, not {given!r}"


def not_sizes(given: str) -> str:
    return f"{given!r} is not a list of numbers of nodes, such as 8,16,32"


def too_many_sizes(sizes: int, most: int) -> str:
    return f"{sizes} legal sizes, but at most {most} are allowed; --node-unit N allows all multiples of N"


def not_pairs(given: str) -> str:
    return f"expected settings as KEY=VALUE,KEY=VALUE, not {given!r}"


def not_ranks(given: object) -> str:
    return f"expected ranks, such as 0,1,2, not {given!r}"


def not_streams(given: str) -> str:
    return (
        "expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a map from local ranks such as 0:1,1:3, not "
        f"{given!r}"
    )


def signal_uncatchable(name: str) -> str:
    return f"a process cannot catch {name}: leave it out"


def no_such_signal(name: str, meant: str) -> str:
    """`meant`: end of the sentence, about the signal that the user probably meant."""
    return f"there is no signal {name}{meant}"


def did_you_mean_signals(names: Sequence[str]) -> str:
    """End of the sentence about an unknown signal."""
    return f"; did you mean {','.join(names)}?"


def not_a_signal(given: object) -> str:
    return f"expected the name of a signal, such as SIGUSR1, not {given!r}"


def not_a_template(names: Sequence[str], given: str) -> str:
    return f"expected a template with {_in_braces(names)}; write $$ for a dollar sign, not {given!r}"


def not_in_templates(name: str, names: Sequence[str]) -> str:
    return f"unknown ${{{name}}}: a template may use {_in_braces(names)}"


def _in_braces(names: Sequence[str]) -> str:
    return " ".join(f"${{{each}}}" for each in names)
