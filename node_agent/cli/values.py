"""From a flag's text to its value. Each raises `ValueError` with one line that says what the flag takes."""

from collections.abc import Callable
from typing import Any

from node_agent.core.log_options import Std

Read = Callable[[str], Any]

PLACES = ("auto", "cpu", "gpu", "xpu")
TRUE, FALSE = ("true", "t", "yes", "y", "on"), ("false", "f", "no", "n", "off")
UNCATCHABLE = ("SIGKILL", "SIGSTOP")


def text(given: str) -> str:
    """Any text: what it is good for shows later."""
    return given


def name(given: str) -> str:
    """What people and file names can bear."""
    if not 1 <= len(given) <= 128 or not given.isprintable():
        raise ValueError(f"1 to 128 printable characters, not {given!r:.60}")
    return given


def modules(given: str) -> tuple[str, ...]:
    """Names of Python modules, with commas."""
    found = tuple(each.strip() for each in given.split(",")) if given else ()
    for each in found:
        if not all(part.isidentifier() for part in each.split(".")):
            raise ValueError(f"names of modules, such as torch or torch,numpy.random, not {each!r:.60}")
    return found


def role_name(given: str) -> str:
    """A name, or none: TorchX gives that."""
    return name(given) if given else given


def switch(given: str) -> bool:
    """A word or a number. torchrun takes numbers alone."""
    word = given.strip().lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    try:
        return int(word) != 0
    except ValueError:
        raise ValueError(f"true, yes, on, 1 or false, no, off, 0, not {given!r}") from None


def whole(low: int, high: int, words: tuple[str, ...] = ()) -> Read:
    """A number, or one of the words."""

    def read(given: str) -> int | str:
        if given in words:
            return given
        try:
            number = int(given)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            besides = f", {', '.join(words[:-1])} or {words[-1]}" if words else ""
            raise ValueError(f"a whole number from {low} to {high}{besides}, not {given!r}")
        return number

    return read


def seconds(low: float = 0, high: float = 10**6) -> Read:
    def read(given: str) -> float:
        try:
            number = float(given)
        except ValueError:
            number = -1.0
        if not low <= number <= high:
            raise ValueError(f"a number of seconds from {low:g} to {high:g}, not {given!r}")
        return number

    return read


def one_of(*choices: str) -> Read:
    def read(given: str) -> str:
        if given not in choices:
            raise ValueError(f"{', '.join(choices[:-1])} or {choices[-1]}, not {given!r}")
        return given

    return read


def nnodes(given: str) -> tuple[int, int]:
    """N or MIN:MAX."""
    low, colon, high = given.partition(":")
    try:
        nodes = int(low), int(high if colon else low)
    except ValueError:
        raise ValueError(f"{given!r} is neither a number of nodes nor MIN:MAX") from None
    if nodes[0] > nodes[1]:
        raise ValueError(f"{given}: MIN is above MAX; did you mean {high}:{low}?")
    if nodes[0] < 1 or nodes[1] > 100_000:
        raise ValueError(f"{given}: from 1 to 100000 nodes")
    return nodes


def codes(given: str) -> tuple[int, ...]:
    """Exit codes; negative ones are signals."""
    return tuple(whole(-255, 255)(part) for part in given.split(","))


def ranks(given: str) -> frozenset[int] | None:
    """0,1,2; nothing means all of them, as under torchrun."""
    if not given.strip():
        return None
    try:
        return frozenset(whole(0, 10**7)(part) for part in given.split(","))
    except ValueError:
        raise ValueError(f"ranks, such as 0,1,2, not {given!r}") from None


streams: Read = Std.from_str


def filters(given: str) -> tuple[str, ...]:
    """Texts to look for; a double comma stands for a comma in one of them, as under torchrun."""
    if not given:
        return ()
    parts = [part.replace("\0", ",") for part in given.replace(",,", "\0").split(",")]
    if "" in parts:
        raise ValueError(f"texts to look for, separated by commas (,, is a comma in one), not {given!r}")
    return tuple(parts)


def signals(given: str) -> tuple[str, ...]:
    """Names of signals that a process can catch."""
    from signal import Signals

    names = tuple(part.strip() for part in given.split(","))
    for each in names:
        if each not in Signals.__members__:
            raise ValueError(f"names of signals, such as SIGTERM,SIGUSR1; there is no {each!r}")
        if each in UNCATCHABLE:
            raise ValueError(f"{each} cannot be caught: leave it out")
    return tuple(dict.fromkeys(names))


def template(given: str) -> str:
    """What a console line begins with."""
    from string import Template

    from node_agent.output.line_prefix import PREFIX_NAMES

    known = " ".join(f"${{{each}}}" for each in PREFIX_NAMES)
    parsed = Template(given)
    if not parsed.is_valid():
        raise ValueError(f"a template with {known}; write $$ for a dollar sign, not {given!r}")
    if unknown := [each for each in parsed.get_identifiers() if each not in PREFIX_NAMES]:
        raise ValueError(f"there is no ${{{unknown[0]}}}: a template may use {known}")
    return given
