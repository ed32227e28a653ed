"""Endpoints as people write them."""

import pytest
from rdzv_protocol.flag_values import address, endpoint


@pytest.mark.parametrize(("host", "shown"), [("a", "a:1"), ("::1", "[::1]:1")])
def test_an_address_is_read_as_it_is_shown(host: str, shown: str) -> None:
    assert address(host, 1) == shown
    assert endpoint(shown) == (host, 1)
