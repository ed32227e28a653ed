"""One line reports an aiohttp version whose inner parts the server does not override."""

import tomllib
from pathlib import Path

import pytest

from rdzv_server.http.aiohttp_version import BEFORE, FIRST, WrongAiohttp, check
from rdzv_server.words import startup as words

PROJECT = Path(__file__).parents[4] / "pyproject.toml"


def test_the_versions_match_the_package():
    wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    assert f"aiohttp>={FIRST},<{BEFORE}" in wanted
    check()


@pytest.mark.parametrize("version", ["3.14.3", "3.15.0", "3.15.0a1", "3.9.5", "4.0"])
def test_another_version_is_refused(version: str):
    with pytest.raises(WrongAiohttp) as refused:
        check(version)
    assert str(refused.value) == words.wrong_aiohttp(version, FIRST, BEFORE)


@pytest.mark.parametrize("version", ["3.14.4", "3.14.12", "3.14.5.dev0"])
def test_a_later_fixed_aiohttp_version_is_accepted(version: str):
    check(version)
