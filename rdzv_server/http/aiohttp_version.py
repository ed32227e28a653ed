"""Check that the installed version of aiohttp is one whose internals this server knows."""

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


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: 3.14.4rc1 counts as 3.14."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
