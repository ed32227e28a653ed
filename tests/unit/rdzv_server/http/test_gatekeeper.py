"""A peer that guesses tokens is slowed down and learns nothing. Admitted peers do not notice."""

import pytest
from rdzv_protocol.errors import ProtocolError

from rdzv_server.auth.authorization import Access, Caller, Role, Token
from rdzv_server.config import Limits
from rdzv_server.http.peer_limits import Gatekeeper
from rdzv_server.token_buckets import Rate

LIMITS = Limits(requests=Rate(1_000, 1_000), refusals=Rate(1, 3))
RIGHT, WRONG = "Bearer right", "Bearer wrong"
JOIN, LOOK, PROBE = ("POST", "/v1/agent/join"), ("GET", "/v1/status"), ("GET", "/healthz")


class Site:
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.guard = Gatekeeper(Access([Token(Role.AGENT, b"right"), Token(Role.ADMIN, b"boss")]), limits)
        self.now = 1_000.0

    def asks(self, authorization: str, action=JOIN, *, peer: str = "10.0.0.7", credential: str | None = None) -> str:
        caller = Caller(peer=peer, authorization=authorization)
        try:
            self.guard.check(*action, caller, credential, self.now)
        except ProtocolError as error:
            if error.status in (401, 403):
                self.guard.note_refusal(caller, self.now)
            return error.code
        return "yes"


@pytest.fixture
def site():
    return Site()


def test_guesses_are_slowed_down_and_a_right_one_looks_like_a_wrong_one(site):
    assert [site.asks(WRONG) for _ in range(4)] == ["unauthorized"] * 3 + ["too_many_requests"]
    assert site.asks(RIGHT) == "too_many_requests"
    site.now += 1.0
    assert site.asks(RIGHT) == "yes"
    assert [site.asks(WRONG) for _ in range(2)] == ["unauthorized", "too_many_requests"]


def test_an_admitted_peer_continues_beside_one_that_guesses(site):
    for _ in range(4):
        site.asks(WRONG)
    assert site.asks(RIGHT, credential=RIGHT) == "yes"
    assert site.asks(RIGHT, peer="10.0.0.8") == "yes"


def test_an_admitted_peer_cannot_guess_another_token(site):
    assert [site.asks("Bearer b0ss", LOOK, credential=RIGHT) for _ in range(4)][-1] == "too_many_requests"
    assert site.asks("Bearer boss", LOOK, credential=RIGHT) == "too_many_requests"


def test_probes_of_any_caller_are_answered(site):
    for _ in range(4):
        site.asks(WRONG)
    assert site.asks("", PROBE) == "yes"


def test_requests_of_one_peer_are_bounded_even_from_admitted_clients():
    site = Site(Limits(requests=Rate(10, 20)))
    assert [site.asks(RIGHT, credential=RIGHT) for _ in range(21)] == ["yes"] * 20 + ["too_many_requests"]
    assert site.asks(RIGHT, peer="10.0.0.8") == "yes"
    site.now += 0.1
    assert site.asks(RIGHT) == "yes"


def test_ten_thousand_agents_behind_one_address_are_not_too_many():
    """Requests as a round forms: a join and a poll each at once; a poll in 3.3 s; a report, a stop and a join."""
    site = Site(Limits())
    for at_once in (20_000, *(1_000 for _ in range(34)), 30_000):
        assert {site.asks(RIGHT, credential=RIGHT) for _ in range(at_once)} == {"yes"}
        site.now += 1 / 3


def test_the_tokens_may_be_replaced(site):
    site.guard.access = Access([Token(Role.AGENT, b"new")])
    assert [site.asks(RIGHT), site.asks("Bearer new")] == ["unauthorized", "yes"]
