"""Sessions of browsers. Each is derived from a token, which cannot be recovered from it, and is stored nowhere.

    EXPIRES.NONCE.MAC        MAC = HMAC-SHA256(key, EXPIRES.NONCE), key = HMAC-SHA256(token, purpose)

So a session is valid on every server that has the token, also after a restart. It ends when the token is
removed, and by itself after `LASTS_S`. Sessions do not take memory.
"""

import hashlib
import hmac
import os

LASTS_S = 12 * 3_600
"""Seconds that a session lasts: a working day. A person who watches through the night logs in once more."""


def cookie_name(host: str) -> str:
    """Return the name of the cookie for this Host header: browsers do not separate the cookies of a host's ports."""
    port = host.rpartition(":")[2]
    return f"rdzv_session_{port}" if port.isascii() and port.isdigit() else "rdzv_session"


def issue(secret: bytes, now: float) -> str:
    """Return a session for the holder of a token, which is `secret`. `now`: seconds since 1970."""
    payload = f"{int(now) + LASTS_S}.{os.urandom(16).hex()}"
    return f"{payload}.{_mac(secret, 'session', payload)}"


def is_of(secret: bytes, session: str, now: float) -> bool:
    """Return whether the session was issued for the token `secret`, and has not ended. Takes the same time for any
    token.
    """
    payload, _, mac = session.rpartition(".")
    is_genuine = hmac.compare_digest(mac.encode(errors="replace"), _mac(secret, "session", payload).encode())
    expires = payload.partition(".")[0]
    return is_genuine and expires.isdigit() and now < int(expires)


def csrf(secret: bytes, session: str) -> str:
    """Return the CSRF token of the session. It is sent with each action, and other pages cannot know it."""
    return _mac(secret, "csrf", session)


def _mac(secret: bytes, purpose: str, text: str) -> str:
    key = hmac.digest(secret, f"rdzv-server {purpose}".encode(), hashlib.sha256)
    return hmac.digest(key, text.encode(errors="replace"), hashlib.sha256).hex()
