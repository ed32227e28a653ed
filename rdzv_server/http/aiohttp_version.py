"""Import of aiohttp, and the check that the installed version is one whose internals this server knows."""

import ssl

from rdzv_server.words import startup as words

FIRST, BEFORE = "3.14.4", "3.15"
"""Range of aiohttp versions, as in pyproject.toml: `request_handler.py` overrides parts that aiohttp does not
promise to keep."""


class WrongAiohttp(ImportError):
    """Another version of aiohttp is installed. The message is one line that says what to do."""


def check(version: str = "") -> None:
    """Raise `WrongAiohttp` unless the version of aiohttp is at least FIRST and below BEFORE."""
    if not version:
        from aiohttp import __version__ as version
    if not _numbers(FIRST) <= _numbers(version) < _numbers(BEFORE):
        raise WrongAiohttp(words.wrong_aiohttp(version, FIRST, BEFORE))


def import_without_authorities() -> None:
    """Import aiohttp without the certificate authorities that its client trusts by default.

    To read them takes a sixth of the time in which a server starts. From then on, aiohttp's client trusts only what a
    TLS context of its caller trusts. So no program that embeds the server may call this.
    """
    create = ssl.create_default_context
    ssl.create_default_context = _trusting_nobody  # type: ignore[assignment]
    try:
        import aiohttp  # noqa: F401
    finally:
        ssl.create_default_context = create


def _trusting_nobody() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: 3.14.4rc1 counts as 3.14."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
