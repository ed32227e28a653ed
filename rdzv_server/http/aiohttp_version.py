"""Check that the aiohttp that is installed is one whose inner parts this server knows."""

from rdzv_server.words import startup as words

FIRST, BEFORE = "3.14.4", "3.15"
"""Versions of aiohttp as in pyproject.toml: `heads.py` overrides parts that aiohttp does not promise to keep."""


class WrongAiohttp(ImportError):
    """Another version of aiohttp, in one line that says what to do."""


def check(version: str = "") -> None:
    """Raise `WrongAiohttp` unless the version of aiohttp is from FIRST on and before BEFORE."""
    if not version:
        from aiohttp import __version__ as version
    if not _numbers(FIRST) <= _numbers(version) < _numbers(BEFORE):
        raise WrongAiohttp(words.wrong_aiohttp(version, FIRST, BEFORE))


def _numbers(version: str) -> tuple[int, ...]:
    """Numbers at the beginning of a version: 3.14.4rc1 counts as 3.14."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
