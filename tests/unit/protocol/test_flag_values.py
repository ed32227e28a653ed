"""Endpoints and times as people write them."""

import pytest
from rdzv_protocol.flag_values import address, endpoint, seconds
from rdzv_protocol.words import flags

from tests.support.message_search import pattern


@pytest.mark.parametrize(("host", "shown"), [("a", "a:1"), ("::1", "[::1]:1")])
def test_an_address_is_read_as_it_is_shown(host: str, shown: str) -> None:
    assert address(host, 1) == shown
    assert endpoint(shown) == (host, 1)


@pytest.mark.parametrize("text", ["a:1", "10.0.0.1:65535", "[::1]:29400", "rdzv-0.rdzv.ns.svc:29400"])
def test_addresses(text: str) -> None:
    assert address(*endpoint(text)) == text


@pytest.mark.parametrize(
    "text", ["", "a", ":1", "a:", "a:0", "a:65536", "a:x", "::1", "a b:1", "a,b:1", "x" * 300 + ":1"]
)
def test_a_text_that_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        endpoint(text)


def test_a_time_has_a_unit_or_is_in_seconds() -> None:
    assert [seconds(text) for text in ("30", "90s", "0.5m", "2h", " 7d")] == [30, 90, 30, 7_200, 604_800]


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 h", "1w", "1e3", "\u0661s", "1.2345s"])
def test_an_invalid_time_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=pattern(flags.bad_time(text))):
        seconds(text)
