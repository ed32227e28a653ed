"""Authorization, as tables of callers and actions."""

from contextlib import nullcontext

import pytest
from rdzv_protocol.errors import Forbidden, ProtocolError, ServerUnavailable, Unauthorized

from rdzv_server.auth.authorization import Access, Caller, Role, Token
from rdzv_server.words import auth as words
from tests.support.message_search import pattern

METRICS = ("GET", "/metrics")
JOIN, LOOK, ACT = ("POST", "/v1/agent/join"), ("GET", "/v1/status"), ("POST", "/v1/runs")
PROBE = ("GET", "/readyz")
TOKENS = [Token(role, f"secret-{role.value}".encode()) for role in Role]
LOCAL, FAR = "127.0.0.1", "10.0.0.7"


def answer(access: Access, action: tuple[str, str], bearer: str = "", peer: str = FAR, **headers: str) -> str:
    caller = Caller(peer=peer, authorization=f"Bearer {bearer}" if bearer else "", **headers)
    try:
        access.check(*action, caller)
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
def test_each_token_is_good_for_its_own_actions(role, answers):
    access = Access(TOKENS)
    assert [answer(access, action, f"secret-{role}") for action in (JOIN, LOOK, ACT)] == answers


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("", words.NO_TOKEN),
        *(
            (header, words.WRONG_TOKEN)
            for header in ("Bearer x", "Bearer ", "Bearer secret-admin ", "secret-admin", "Ü")
        ),
    ],
)
def test_only_the_exact_header_counts(header, says):
    with pytest.raises(Unauthorized, match=pattern(says)):
        Access(TOKENS).check(*LOOK, Caller(peer=LOCAL, authorization=header))


@pytest.mark.parametrize("action", ["GET /v1/metrics", "GET /v1/", "POST /v1/anything", "DELETE /v1/status"])
def test_every_path_below_the_version_asks_for_a_token(action):
    assert answer(Access(TOKENS), tuple(action.split())) == Unauthorized.code


def test_metrics_need_permission_to_view_every_run():
    access = Access([*TOKENS, Token(Role.AGENT, b"team", "team-*")])
    assert [answer(access, METRICS, f"secret-{role.value}") for role in Role] == ["yes"] * 3
    assert answer(access, METRICS) == Unauthorized.code
    refusal = pattern(words.not_for_all_runs, patterns=["team-*"], why="why")
    for token, may in (("secret-agent", True), ("team", False)):
        permit = access.check(*METRICS, Caller(peer=FAR, authorization=f"Bearer {token}"))
        with nullcontext() if may else pytest.raises(Forbidden, match=refusal):
            permit.check_every_run("why")


def test_probes_are_allowed_for_any_caller():
    for access in (Access(), Access(TOKENS)):
        assert answer(access, PROBE) == "yes"


def test_with_only_an_agents_token_clients_cannot_act():
    access = Access([Token(Role.AGENT, b"secret-agent")])
    assert answer(access, ACT, "secret-agent", LOCAL) == Forbidden.code


def test_a_secret_in_two_files_is_valid_for_both():
    access = Access([Token(Role.READ, b"one"), Token(Role.ADMIN, b"one")])
    assert [answer(access, action, "one") for action in (JOIN, LOOK, ACT)] == ["yes"] * 3


def test_a_token_does_not_show_its_secret():
    assert "secret" not in f"{TOKENS[0]} {TOKENS[0]!r} {TOKENS}"


# Without tokens.


def test_without_tokens_any_caller_may_join_and_only_this_machine_may_act():
    access = Access()
    assert access.is_open
    assert [answer(access, action) for action in (JOIN, LOOK, ACT)] == ["yes", "yes", "forbidden"]
    assert {answer(access, ACT, peer=peer) for peer in (LOCAL, "::ffff:127.0.0.1", "::1", "127.8.8.8")} == {"yes"}


@pytest.mark.parametrize(("host", "port"), [("gpu1:31000", 31000), ("[fd77::1]:31000", 31000), ("gpu1", 29400)])
def test_the_refusal_without_tokens_says_how_to_act(host, port):
    with pytest.raises(Forbidden) as refusal:
        Access().check(*ACT, Caller(peer=FAR, host=host))
    assert str(refusal.value) == words.not_this_machine(port)


@pytest.mark.parametrize("peer", ["", "localhost", "::ffff:10.0.0.7", "127.0.0.1.evil.example"])
def test_addresses_of_other_machines_may_not_act(peer):
    assert answer(Access(), ACT, peer=peer) == Forbidden.code


@pytest.mark.parametrize(
    ("origin", "host", "may"),
    [
        ("http://127.0.0.1:29400", "127.0.0.1:29400", "yes"),
        ("http://[::1]:29400", "[::1]:29400", "yes"),
        ("https://localhost", "localhost", "yes"),
        ("https://evil.example", "127.0.0.1:29400", "forbidden"),
        ("http://rebound.example:29400", "rebound.example:29400", "forbidden"),
        ("null", "127.0.0.1:29400", "forbidden"),
    ],
)
def test_a_page_in_a_browser_of_this_machine_acts_only_if_it_is_the_servers_own(origin, host, may):
    assert answer(Access(), ACT, peer=LOCAL, host=host, origin=origin) == may


# Tokens for some runs alone.


def permit(*patterns: str, action: tuple[str, str] = JOIN):
    access = Access(Token(Role.AGENT, b"ours", pattern) for pattern in patterns)
    return access.check(*action, Caller(peer=FAR, authorization="Bearer ours"))


@pytest.mark.parametrize(
    ("patterns", "run_id", "may"),
    [
        (["*"], "anything", True),
        (["team-a-*"], "team-a-1", True),
        (["team-a-*"], "team-b-1", False),
        (["team-a-*"], "Team-A-1", False),
        (["team-a-*"], "x-team-a-1", False),
        (["team-a-*", "shared"], "shared", True),
        (["team-?"], "team-12", False),
    ],
)
def test_a_token_allows_and_shows_only_the_runs_that_it_names(patterns, run_id, may):
    assert permit(*patterns, action=LOOK).covers(run_id) is may
    with (
        nullcontext()
        if may
        else pytest.raises(Forbidden, match=pattern(words.not_for_run, patterns=patterns, run_id=run_id))
    ):
        permit(*patterns).check_run(run_id)


@pytest.mark.parametrize(
    ("run_id", "active_runs", "may"),
    [
        ("a-3", {"a-1", "b-1", "b-2"}, True),
        ("a-3", {"a-1", "a-2"}, False),
        ("a-2", {"a-1", "a-2"}, True),
        ("shared", {"a-1", "a-2", "shared-1", "shared-2"}, True),
    ],
)
def test_a_token_may_bound_the_number_of_runs_at_a_time(run_id, active_runs, may):
    access = Access([Token(Role.AGENT, b"ours", "a-*", 2), Token(Role.AGENT, b"ours", "shared*")])
    permitted = access.check(*JOIN, Caller(peer=FAR, authorization="Bearer ours"))
    assert permitted.has_quota
    full = pytest.raises(ServerUnavailable, match=pattern(words.too_many_runs, most=2, run_id=run_id))
    with nullcontext() if may else full:
        permitted.check_quota(run_id, active_runs)


def test_a_token_of_agents_and_readers_reads_everything_and_joins_its_own_runs():
    access = Access([Token(Role.AGENT, b"ours", "team-a-*"), Token(Role.READ, b"ours")])
    caller = Caller(peer=FAR, authorization="Bearer ours")
    access.check(*LOOK, caller)
    with pytest.raises(Forbidden):
        access.check(*JOIN, caller).check_run("team-b-1")
