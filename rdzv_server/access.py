"""Who may do what: agents, people who watch, and people who act, each with a token of their own.

    path                      agent   read    admin   without any token
    /v1/agent/...             yes     no      yes     yes
    GET /v1/...               yes     yes     yes     yes
    other methods on /v1/...  no      no      yes     from loopback alone
    /healthz, /readyz         yes     yes     yes     yes

Tokens are compared in constant time, and all of them each time: how long an answer takes tells nothing about any.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from protocol import paths
from protocol.errors import Forbidden, Unauthorized


class Role(Enum):
    AGENT = "agent"
    READ = "read"
    ADMIN = "admin"


class Deed(Enum):
    """What a request is about."""

    JOIN = "take part in runs"
    LOOK = "look at runs"
    ACT = "act on runs"
    NOTHING = "ask whether the server is there"


_ALLOWED: dict[Deed, frozenset[Role]] = {
    Deed.JOIN: frozenset({Role.AGENT, Role.ADMIN}),
    Deed.LOOK: frozenset(Role),
    Deed.ACT: frozenset({Role.ADMIN}),
}


@dataclass(frozen=True, slots=True)
class Token:
    """A secret, and what it lets its bearer do. `str()` and `repr()` do not tell it."""

    role: Role
    secret: bytes

    def __repr__(self) -> str:
        return f"Token({self.role.value})"


class Access:
    """The tokens of one server; none at all lets everybody in, and act from loopback."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = tuple(tokens)

    @property
    def is_open(self) -> bool:
        """Whether anybody who reaches the server may take part."""
        return not self._tokens

    def check(self, method: str, path: str, authorization: str, peer: str) -> None:
        """Raise `Unauthorized` or `Forbidden` unless the bearer of this header, at this address, may do this."""
        deed = deed_of(method, path)
        if deed is Deed.NOTHING:
            return
        if not self._tokens:
            if deed is Deed.ACT and not _is_loopback(peer):
                raise Forbidden("without tokens this server takes operators' actions from its own machine alone")
            return
        role = self._role(authorization)
        if role is None:
            raise Unauthorized("this server asks for a token: start the agent with --token-file")
        if role not in _ALLOWED[deed]:
            raise Forbidden(f"the {role.value} token does not let its bearer {deed.value}")

    def _role(self, authorization: str) -> Role | None:
        given = authorization.encode(errors="replace")
        matches = [hmac.compare_digest(given, b"Bearer " + token.secret) for token in self._tokens]
        return next((token.role for token, same in zip(self._tokens, matches, strict=True) if same), None)


def deed_of(method: str, path: str) -> Deed:
    """What a request with this method and path is about."""
    if not path.startswith(paths.API):
        return Deed.NOTHING
    if path.startswith(paths.AGENT):
        return Deed.JOIN
    return Deed.LOOK if method in ("GET", "HEAD", "OPTIONS") else Deed.ACT


def _is_loopback(peer: str) -> bool:
    try:
        return ip_address(peer.removeprefix("::ffff:")).is_loopback
    except ValueError:  # no address: within this process
        return True
