"""Flags: the ways to give an argument, and the readers of its value, from a flag's text or a program's value.

A reader raises `ValueError` with one line that says what the argument takes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import cast

from msgspec import Struct
from msgspec.structs import replace
from rdzv_protocol import words as protocol_words
from rdzv_protocol.flag_values import checked_counts, is_host, node_counts
from rdzv_protocol.visible import is_visible

from node_agent import words
from node_agent.kernel.core.log_options import Std

Read = Callable[[object], object]

BACKENDS = ("c10d", "static", "etcd", "etcd-v2", "rdzv-server")
"""Backends: torchrun's, and the name of our plug-in for torchrun. rdzv-server serves all of them."""
PLACES = ("auto", "cpu", "gpu", "xpu")
NVLINK = "nvlink"
"""Value of `--topology` for the NVLink domain that the driver reports."""
TRUE, FALSE = ("true", "t", "yes", "y", "on"), ("false", "f", "no", "n", "off")
LONGEST_SORT_KEY = 512
MOST_SIZES = 32
"""Most legal sizes of a run: a message takes no more."""
UNCATCHABLE = ("SIGKILL", "SIGSTOP")


JOIN, START, RESTART = "join the other nodes", "start workers", "restart after failures"
WATCH, OUTPUT, PROTECT = "find hangs and bad nodes", "keep the output", "use a protected server"
TASKS = (JOIN, START, RESTART, WATCH, OUTPUT, PROTECT)
"""Tasks of a first day, in the order of --help."""


class Nodes(Struct, frozen=True):
    """Numbers of nodes of a run."""

    least: int
    most: int
    sizes: tuple[int, ...] = ()
    """Legal numbers of nodes if they are listed, empty for all from `least` to `most`."""


def text(given: object) -> str:
    """Read any text. Its use is checked later."""
    return str(given)


def name(given: object) -> str:
    """Read a text that is suitable for people and in file names."""
    if not isinstance(given, str) or not 1 <= len(given) <= 128 or not is_visible(given):
        raise ValueError(words.values.not_a_name(given))
    return given


def modules(given: object) -> tuple[str, ...]:
    """Read names of Python modules, separated by commas."""
    found = tuple(each.strip() for each in text(given).split(",")) if given else ()
    for each in found:
        if not all(part.isidentifier() for part in each.split(".")):
            raise ValueError(words.values.not_modules(each))
    return found


def sort_key(place: str) -> str:
    """Read a text by which nodes are sorted, such as rack7.node12. Its numbers are sorted as numbers."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(8), place)[:LONGEST_SORT_KEY] if place else ""


def name_or_none(given: object) -> str:
    """Read a name, or an empty text for the default."""
    return name(given) if given else ""


def host_or_none(given: object) -> str:
    """Read a host's name or address, or an empty text for the default."""
    found = name_or_none(given)
    if found and not is_host(found):
        raise ValueError(words.values.not_a_host(given))
    return found


def switch(given: object) -> bool:
    """Read true or false, from a word or a number. torchrun takes only numbers."""
    word = text(given).strip().lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    try:
        return int(word) != 0
    except ValueError:
        raise ValueError(words.values.not_a_switch(given)) from None


def whole(low: int, high: int, names: tuple[str, ...] = ()) -> Read:
    """Return a reader of a number or one of the names."""

    def read(given: object) -> int | str:
        if isinstance(given, str) and given in names:
            return given
        with suppress(ValueError):
            if isinstance(given, str | int) and given is not True and low <= int(given) <= high:
                return int(given)
        raise ValueError(words.values.not_a_whole_number(low, high, given, names))

    return read


def number(low: float, high: float, *, is_seconds: bool = False) -> Callable[[object], float]:
    def read(given: object) -> float:
        with suppress(ValueError, OverflowError):
            if isinstance(given, str | int | float) and low <= float(given) <= high:
                return float(given)
        refuse = words.values.not_seconds if is_seconds else words.values.not_a_number
        raise ValueError(refuse(low, high, given))

    return read


def seconds(low: float = 0, high: float = 10**6) -> Callable[[object], float]:
    return number(low, high, is_seconds=True)


LONGEST_PATTERN = 512


def patterns(given: object) -> tuple[str, ...]:
    """Read regular expressions, one a line."""
    found = tuple(map(pattern, lines(given)))
    if long := [each for each in found if len(each.encode()) > LONGEST_PATTERN]:
        raise ValueError(words.values.pattern_too_long(LONGEST_PATTERN, len(long[0].encode())))
    return found


def pattern(given: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(given)
    except re.error as error:
        raise ValueError(words.values.not_a_pattern(given, error)) from None
    return given


def lines(given: object) -> list[str]:
    """Return the lines of one or several texts that are not blank."""
    texts = [given] if isinstance(given, str) else map(text, _parts(given))
    return [line.strip() for each in texts for line in each.splitlines() if line.strip()]


def one_of(*choices: str) -> Read:
    def read(given: object) -> str:
        if given not in choices:
            raise ValueError(words.values.not_one_of(choices, given))
        return text(given)

    return read


def place(given: object) -> tuple[str, int]:
    """Read a port of loopback, or HOST:PORT. An IPv6 address needs brackets."""
    host, _, port = str(given).rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError(words.values.not_a_place(given))
    return host.strip("[]") or "127.0.0.1", int(port)


def nodes(given: object) -> Nodes:
    """Read numbers of nodes: N, MIN:MAX, legal sizes N,N,N, or a program's minimum and maximum."""
    if isinstance(given, tuple):
        return Nodes(*checked_counts(*cast(tuple[int, int], tuple(map(whole(1, 100_000), given)))))
    if "," not in (shown := text(given)):
        return Nodes(*node_counts(shown))
    parts = [part.strip() for part in shown.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= 100_000 for part in parts):
        raise ValueError(words.values.not_sizes(shown))
    sizes = sorted(set(map(int, parts)))
    if len(sizes) > MOST_SIZES:
        raise ValueError(words.values.too_many_sizes(len(sizes), MOST_SIZES))
    return Nodes(sizes[0], sizes[-1], tuple(sizes))


def pairs(given: object) -> dict[str, object]:
    """Read a map from a text K=V,K=V, also in quotes, or from a map. None in a map means not given."""
    if isinstance(given, Mapping):
        return {text(key): value for key, value in given.items() if value is not None}
    found: dict[str, object] = {}
    stripped = text(given).strip().strip("'\"").strip()
    for pair in stripped.split(",") if stripped else ():
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key or not value:
            raise ValueError(words.values.not_pairs(pair))
        found[key] = value
    return found


def _parts(given: object) -> list[object]:
    """Return the parts of a list, or of a text with commas."""
    if isinstance(given, str):
        return [*given.split(",")]
    return [*given] if isinstance(given, Iterable) else [given]


def codes(given: object) -> tuple[object, ...]:
    """Read exit codes. Negative ones are signals."""
    return tuple(map(whole(-255, 255), _parts(given)))


def ranks(given: object) -> frozenset[object] | None:
    """Read ranks from a text such as 0,1,2. An empty text means all ranks, as under torchrun."""
    if not given or (isinstance(given, str) and not given.strip()):
        return None
    try:
        return frozenset(map(whole(0, 10**7), _parts(given)))
    except ValueError:
        raise ValueError(words.values.not_ranks(given)) from None


def streams(given: object) -> Std | Mapping[int, Std]:
    """Read streams by torch's numbers: one for every worker, or a map from local ranks."""
    return given if isinstance(given, Std | Mapping) else Std.from_str(text(given))


def filters(given: object) -> tuple[str, ...]:
    """Read texts to search for. A double comma is a comma within a text, as under torchrun.

    An extra comma makes an empty text, which is in every line: also as under torchrun.
    """
    if not given:
        return ()
    if not isinstance(given, str):
        return tuple(map(text, _parts(given)))
    return tuple(part.replace("\0", ",") for part in given.replace(",,", "\0").split(","))


def signals(given: object) -> tuple[str, ...]:
    """Read names of signals that a process can catch. Refuse misspelt ones: an unhandled signal would kill the agent.

    A name that resembles no signal's stays, as under torchrun. `known_signals` removes it.
    """
    names = tuple(text(part).strip() for part in _parts(given))
    if uncatchable := [each for each in names if each in UNCATCHABLE]:
        raise ValueError(words.values.signal_uncatchable(uncatchable[0]))
    for each in names:
        if each not in known_signals(names) and (meant := _instead_of_signal(each.upper())):
            raise ValueError(words.values.no_such_signal(each, meant))
    return tuple(dict.fromkeys(names))


def _instead_of_signal(word: str) -> str:
    """Return the end of a sentence about signals that the user probably meant: by number, or between other text."""
    from signal import Signals

    known, number = Signals.__members__, int(word) if word.isdecimal() else 0
    found = [name for name, signal in known.items() if signal == number][:1]
    if found := found or re.findall("|".join(sorted(known, key=len, reverse=True)), word):
        return words.values.did_you_mean_signals(found)
    return protocol_words.flags.did_you_mean(word if word.startswith("SIG") else f"SIG{word}", known, 0.8)


def signal_name(given: object) -> str:
    """Read the name of one signal that a process can catch."""
    names = signals(given)
    if len(names) != 1 or not known_signals(names):
        raise ValueError(words.values.not_a_signal(given))
    return names[0]


def known_signals(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names that are signals on this system."""
    from signal import Signals

    return tuple(each for each in names if each in Signals.__members__)


def template(given: object) -> str:
    """Read the beginning of a console line."""
    from string import Template

    from node_agent.kernel.core.log_options import PREFIX_NAMES

    parsed = Template(given := text(given))
    if not parsed.is_valid():
        raise ValueError(words.values.not_a_template(PREFIX_NAMES, given))
    if unknown := [each for each in parsed.get_identifiers() if each not in PREFIX_NAMES]:
        raise ValueError(words.values.not_in_templates(unknown[0], PREFIX_NAMES))
    return given


class Flag(Struct, frozen=True):
    """Ways to give an argument: its own flag, a variable, and perhaps a key of `--rdzv-conf`."""

    metavar: str
    """Word for the flag's value in help, empty if the flag is a switch."""
    read: Read
    help: str
    """Line of help. Empty if there is only a key of `--rdzv-conf`, and no flag."""
    task: str = ""
    """Task of a first day for which --help shows the flag; empty: only --help-all shows it."""
    short: str = ""
    """torchrun's short name, such as -r."""
    alias: str = ""
    """Another name of the flag, which torchrun does not have."""
    is_ours: bool = False
    """Whether torchrun does not have the flag (yet)."""
    is_key: bool = False
    """Whether a flag of torchrun is also a key of `--rdzv-conf`. A flag of ours always is."""
    is_commands: bool = False
    """Whether the flag is about the program node-agent or its command, so that `LaunchConfig` does not need it."""
    has_variable: bool = True
    """Whether the flag falls back to a variable `PET_...`, as under torchrun."""
    variable: str = ""
    """A variable of torch to which the flag also falls back."""
    is_for_one: bool = False
    """Whether the variable is only for this agent, so that launchers started by its workers must not read it."""
    needs_script: bool = True
    """Whether SCRIPT must follow."""
    repeats: bool = False
    """Whether the flag may be given several times. Its reader gets a list of the texts."""
    argument: str = ""
    """Name of the argument."""

    @property
    def names(self) -> list[str]:
        """Names of the flag with dashes: the short one, the argument's own and the alias."""
        return [each for each in (self.short, "--" + self.argument.replace("_", "-"), self.alias) if each]

    @property
    def variables(self) -> list[str]:
        """Variables that the flag falls back to, in order of precedence."""
        words = [self.argument, self.alias.removeprefix("--").replace("-", "_")] if self.has_variable else []
        return [*(f"PET_{word.upper()}" for word in words if word), *([self.variable] if self.variable else [])]

    @property
    def spellings(self) -> list[str]:
        """Each name with dashes and with underscores."""
        both = ((name, name[:2] + name[2:].replace("-", "_")) for name in self.names)
        return list(dict.fromkeys(spelling for pair in both for spelling in pair))

    @property
    def torchruns(self) -> list[str]:
        """The spellings that torchrun has too."""
        return [] if self.is_ours else replace(self, alias="").spellings


ours = partial(Flag, is_ours=True)
"""Flag that torchrun does not have."""
only_key = partial(ours, "", help="")
"""Key of `--rdzv-conf` without a flag."""
a_switch = partial(Flag, "", switch)
our_switch = partial(a_switch, is_ours=True)
