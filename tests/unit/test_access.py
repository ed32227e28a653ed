"""Who may do what, as a table."""

import pytest

from protocol.errors import Forbidden, ProtocolError, Unauthorized
from rdzv_server.access import Access, Role, Token

JOIN, LOOK, ACT = ("POST", "/v1/agent/join"), ("GET", "/v1/status"), ("POST", "/v1/runs")
PROBE = ("GET", "/readyz")
TOKENS = [Token(role, f"secret-{role.value}".encode()) for role in Role]
LOCAL, FAR = "127.0.0.1", "10.0.0.7"


def answer(access: Access, deed: tuple[str, str], bearer: str = "", peer: str = FAR) -> str:
    try:
        access.check(*deed, f"Bearer {bearer}" if bearer else "", peer)
    except ProtocolError as error:
        return error.code
    return "yes"


@pytest.mark.parametrize(
    ("role", "answers"),
    [
        ("agent", ["yes", "yes", "forbidden"]),
        ("read", ["forbidden", "yes", "forbidden"]),
        ("admin", ["yes", "yes", "yes"]),
        ("nobody", ["unauthorized", "unauthorized", "unauthorized"]),
    ],
)
def test_each_token_is_good_for_its_own_deeds(role, answers):
    access = Access(TOKENS)
    assert [answer(access, deed, f"secret-{role}") for deed in (JOIN, LOOK, ACT)] == answers


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer secret-admin ", "Basic secret-admin", "secret-admin", "Ü"])
def test_only_the_exact_header_counts(header):
    with pytest.raises(Unauthorized):
        Access(TOKENS).check(*LOOK, header, LOCAL)


def test_without_tokens_everybody_may_take_part_and_only_this_machine_may_act():
    access = Access()
    assert access.is_open
    assert [answer(access, deed) for deed in (JOIN, LOOK, ACT)] == ["yes", "yes", "forbidden"]
    assert answer(access, ACT, peer=LOCAL) == answer(access, ACT, peer="::ffff:127.0.0.1") == "yes"


@pytest.mark.parametrize("access", [Access(), Access(TOKENS)])
def test_probes_are_for_everybody(access):
    assert answer(access, PROBE) == "yes"


def test_one_token_for_agents_alone_leaves_nobody_to_act():
    access = Access([Token(Role.AGENT, b"secret-agent")])
    assert answer(access, ACT, "secret-agent", LOCAL) == Forbidden.code


def test_a_token_does_not_tell_its_secret():
    assert "secret" not in f"{TOKENS[0]} {TOKENS[0]!r} {TOKENS}"
