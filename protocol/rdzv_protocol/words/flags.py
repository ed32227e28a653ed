"""Messages about a wrong flag, or a wrong value of a flag or a variable."""

from collections.abc import Iterable

from rdzv_protocol.text import closest


def did_you_mean(given: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the end of a sentence about an unknown word; empty if no known word is similar.

    `least`: how similar it must be, from 0 to 1 (equal).
    """
    meant = closest(given, known, least)
    return f"; did you mean {meant}?" if meant else ""


def cannot_write(why: str) -> str:
    return f"cannot write to stdout: {why}"


def https_without_ca(source: str, tls_ca: str) -> str:
    return f"{source}: https needs {tls_ca}: give a file of CA certificates, or the word system"


def belong_together(one: str, other: str) -> str:
    return f"give both {one} and {other}: each needs the other"


def bad_value(source: str, why: str) -> str:
    """The refusal of a value from a flag, a variable, a key or a file."""
    return f"{source}: {why}"


A_TIME = "a time such as 90s, 30m, 24h or 7d"


def bad_time(text: str) -> str:
    return f"expected {A_TIME}, not {text!r}"


def no_host(text: str) -> str:
    return f"{text!r} has no host: give HOST:PORT; if the host is a shell variable, it is empty"


def no_port(text: str, example: str) -> str:
    return f"{text!r} has no port: give HOST:PORT, such as {example}"


def bad_endpoint(text: str, lowest_port: int) -> str:
    return f"{text!r} is not HOST:PORT with a port from {lowest_port} to 65535"


def bad_scheme(text: str, scheme: str) -> str:
    return f"{text!r} begins with {scheme}://: give HOST:PORT, http://HOST:PORT or https://HOST:PORT"


def bad_node_counts(text: str) -> str:
    return f"{text!r} is neither a number of nodes nor MIN:MAX"


def min_above_max(text: str, low: int, high: int) -> str:
    return f"{text}: MIN is above MAX; did you mean {high}:{low}?"


def too_many_nodes(text: str) -> str:
    return f"{text}: expected 1 to 100000 nodes"


def other_setting(flag: str, theirs: object, asked: object) -> str:
    """A run has another setting than an agent asks for. `theirs`: None if the run has no value for it."""
    return f"{flag} is {_value(theirs)} in the run, but {_value(asked)} here"


def setting_asked(flag: str, theirs: object, asked: object) -> str:
    """The same setting, as a phrase about the agent."""
    return f"{flag} {_value(asked)} instead of {_value(theirs)}"


def _value(setting: object) -> str:
    """Return a setting as its flag takes it. A switch is on or off."""
    if isinstance(setting, bool):
        return "on" if setting else "off"
    if setting in (None, ()):
        return "not set"
    return ",".join(map(str, setting)) if isinstance(setting, tuple) else str(setting).removesuffix(".0")


def bad_level(variable: str, word: str) -> str:
    return f"{variable}: expected DEBUG, INFO, WARNING, ERROR or CRITICAL, not {word!r:.60}; using INFO"


def needs_shtab(program: str, flag: str | None) -> str:
    return f"{program}: {flag} needs the package shtab: pip install shtab"


# A token's file.


def unreadable_token(path: str, why: str) -> str:
    return f"{path}: {why}"


def no_token(path: str) -> str:
    return f"{path}: write the token into this file, as one word of printable ASCII"
