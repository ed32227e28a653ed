"""Sessions of browsers: which user has one, how long it lasts, and what it contains."""

import pytest

from rdzv_server.auth import session
from rdzv_server.auth.session import LASTS_S

SECRET, OTHER, NOW = b"token-0123456789", b"other-0123456789", 1_750_000_000.0


def test_a_session_is_good_for_its_token_until_it_ends() -> None:
    given = session.issue(SECRET, NOW)
    assert session.is_of(SECRET, given, NOW) and session.is_of(SECRET, given, NOW + LASTS_S - 1)
    assert not session.is_of(SECRET, given, NOW + LASTS_S)
    assert not session.is_of(OTHER, given, NOW)
    assert session.issue(SECRET, NOW) != given, "each login has its own"


@pytest.mark.parametrize(
    "change",
    [
        lambda given: "9999" + given[4:],  # this one would last longer
        lambda given: given[:-1] + ("0" if given[-1] != "0" else "1"),
        lambda given: given.rpartition(".")[0],
        lambda given: "",
        lambda given: "..",
        lambda given: "\u00b2.\u00e9." + given[-64:],
    ],
)
def test_a_changed_session_is_invalid(change) -> None:
    assert not session.is_of(SECRET, change(session.issue(SECRET, NOW)), NOW)


def test_no_token_can_be_read_from_a_session() -> None:
    given = session.issue(SECRET, NOW)
    assert SECRET.decode() not in given and SECRET.hex() not in given
    assert session.csrf(SECRET, given) not in given and session.csrf(SECRET, given) != session.csrf(OTHER, given)


@pytest.mark.parametrize(
    ("host", "name"),
    [("h:29400", "rdzv_session_29400"), ("h", "rdzv_session"), ("[::1]:80", "rdzv_session_80"),
     ("h:a=b; c", "rdzv_session"), ("", "rdzv_session")],
)  # fmt: skip
def test_ports_of_one_host_have_cookies_of_their_own(host: str, name: str) -> None:
    assert session.cookie_name(host) == name
