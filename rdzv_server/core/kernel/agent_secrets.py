"""Secrets of agents: only an agent that has the secret of its join can act under its agent id.

The functions load OpenSSL, which takes 3.5 MB, when they get the first secret. An agent with `--standalone` has none.
"""


def digest(secret: str) -> str:
    """Return the hash of a secret, which is random and long.

    The server keeps only this hash. Empty if there is no secret.
    """
    if not secret:
        return ""
    from hashlib import sha256

    return sha256(secret.encode()).hexdigest()


def is_same(given: str, kept: str) -> bool:
    """Compare two hashes in a time that does not depend on where they differ."""
    if not given and not kept:
        return True
    from hmac import compare_digest

    return compare_digest(given, kept)


def nonce(kept: str, text: str) -> str:
    """Return the keyed hash of a text.

    The key is `kept`, the hash of a secret: without it the result cannot be guessed.
    """
    import hmac

    return hmac.new(kept.encode(), text.encode(), "sha256").hexdigest()[:32]
