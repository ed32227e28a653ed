"""Values of flags that several programs parse. Each function raises `ValueError` with one line for the user."""

import re
from typing import Literal, get_args

from rdzv_protocol import words
from rdzv_protocol.paths import DEFAULT_PORT, STATUS
from rdzv_protocol.text import size_range

Endpoint = tuple[str, int]
"""Host, without brackets, and port."""
LOG_FORMATS = ("text", "json")
"""Formats of a program's own log lines."""
LogStream = Literal["stdout", "stderr"]
LOG_STREAMS: tuple[LogStream, ...] = get_args(LogStream)
LONGEST_HOST = 250
"""Most characters of a host: with a port, it is an address of the protocol."""
LOG_LINES, MOST_LOG_LINES = 50, 1_000
"""Lines of a worker's log file that are shown at a time: by default, and at most."""

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def seconds(text: str) -> float:
    """Return the seconds of a time with its unit, as in 90s; without a unit they are seconds. Raises `ValueError`."""
    match = re.fullmatch(r"([0-9]{1,8}(?:\.[0-9]{1,3})?)([smhd]?)", text.strip())
    if match is None:
        raise ValueError(words.flags.bad_time(text))
    return float(match[1]) * _UNITS_S[match[2]]


def endpoint(text: str, default_port: int | None = None, lowest: int = 1) -> Endpoint:
    """Return the endpoint of HOST:PORT, also in a URL such as that of an agent's page; an IPv6 address is in brackets.

    Without a default, the text must contain a port. Raises `ValueError`, with one line for the user.
    """
    for scheme in ("http://", "https://"):
        text = text.removeprefix(scheme)
    scheme, is_url, _ = text.partition("://")
    if is_url:
        raise ValueError(words.flags.bad_scheme(text, scheme))
    text = text.removesuffix("/").removesuffix(STATUS)
    host, colon, port = text.rpartition(":")
    is_too_long = len(port) == 5 and port.isdigit() and not host.endswith(":")  # for a part of an IPv6 address
    if ":" in host and not host.startswith("[") and not is_too_long and is_host(text):
        raise ValueError(words.flags.no_port(text, f"[{text}]:{DEFAULT_PORT}"))
    if colon and not host:
        raise ValueError(words.flags.no_host(text))
    if not colon or "]" in port:
        if text.isdigit() and len(text) < 6:
            raise ValueError(words.flags.no_host(text))
        if text and not is_host(text):
            raise ValueError(words.flags.bad_endpoint(text, lowest))
        if default_port is None or not text:
            raise ValueError(words.flags.no_port(text, f"{text or 'HOST'}:{DEFAULT_PORT}"))
        host, port = text, str(default_port)
    is_port = port.isascii() and port.isdigit() and lowest <= int(port) <= 65_535
    if not is_host(host) or not is_port:
        raise ValueError(words.flags.bad_endpoint(text, lowest))
    return host.strip("[]"), int(port)


def address(host: str, port: int) -> str:
    """Return HOST:PORT, for people and for HTTP, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_host(text: str) -> bool:
    """Return whether this can be a host's name or address, with or without brackets."""
    return bool(text.strip("[]")) and len(text) <= LONGEST_HOST and text.isprintable() and not set(text) & set(" /,;@")


def endpoints(text: str, default_port: int | None = None, lowest: int = 1) -> list[Endpoint]:
    """Return the endpoints of HOST:PORT,HOST:PORT, each once. Raises `ValueError`."""
    return list(dict.fromkeys(endpoint(each.strip(), default_port, lowest) for each in text.split(",")))


def node_counts(text: str) -> tuple[int, int]:
    """Return the minimum and maximum of N, or of MIN:MAX. Raises `ValueError`."""
    low, colon, high = text.partition(":")
    try:
        nodes = int(low), int(high if colon else low)
    except ValueError:
        raise ValueError(words.flags.bad_node_counts(text)) from None
    return checked_counts(*nodes, text)


def checked_counts(low: int, high: int, text: str = "") -> tuple[int, int]:
    """Return the minimum and the maximum that `text` gave. Raises `ValueError` if no run can have them."""
    text = text or size_range(low, high)
    if low > high:
        raise ValueError(words.flags.min_above_max(text, low, high))
    if low < 1 or high > 100_000:
        raise ValueError(words.flags.too_many_nodes(text))
    return low, high
