"""Secrets of agents."""

from rdzv_server.core.kernel.agent_secrets import digest, is_same, nonce


def test_the_hash_of_a_secret_stays_the_same_for_servers_to_come() -> None:
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest("") == ""


def test_a_secret_is_the_same_as_itself_only() -> None:
    assert is_same(digest("one"), digest("one")) and is_same("", "")
    assert not is_same(digest("one"), digest("two"))
    assert not is_same("", digest("one")) and not is_same(digest("one"), "")


def test_nonces_differ_by_secret_and_text() -> None:
    assert nonce("a", "x") == nonce("a", "x")
    assert len({nonce("a", "x"), nonce("a", "y"), nonce("b", "x")}) == 3
