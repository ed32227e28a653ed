"""Secrets of agents: only an agent that has the secret of its join can speak in its name.

The functions load OpenSSL, which takes 3.5 MB, when they see the first secret. An agent with `--standalone` has none.
"""


def digest(secret: str) -> str:
    """Return the hash of a secret, which is random and long: all that the server keeps of it. Empty for none."""
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
    """Return the keyed hash of a text. Its key is `kept`, the hash of a secret: who does not know it cannot guess the
    result.
    """
    import hmac

    return hmac.new(kept.encode(), text.encode(), "sha256").hexdigest()[:32]
